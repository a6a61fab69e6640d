"""Pages that need no network: what they share, and the report of an estimate."""
