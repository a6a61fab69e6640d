"""What every room uses: errors, checks of arguments, texts, files, progress, tables, caches."""
