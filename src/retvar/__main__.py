"""``python -m retvar``."""

from retvar.cli import main

main()
