"""The command `buckram`: one noun a file, `main` here is the entry point.

app.py puts the nouns together and turns every error into one line and an exit code (exits.py); options.py and
output.py hold what the commands share. Commands call the public client; no decision of the protocol is made here.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    from buckram.cli.stdout import name_output, open_standard_files

    open_standard_files()
    from buckram.cli.app import run

    name_output()
    raise SystemExit(run())
