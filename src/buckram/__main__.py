"""`python -m buckram` is the command `buckram`."""

from buckram.cli import main

main()
