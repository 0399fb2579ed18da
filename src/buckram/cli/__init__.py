"""The command `buckram`: each file or folder here has the commands of one noun, and `main` is the entry point.

`app.py` puts the nouns together and turns every error into one line and an exit code (`cli/shared/exits.py`);
`cli/shared` has what the commands share. Commands call the public client and make no decision of the protocol.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    # What `signal` is made of, without the time that takes: until then Ctrl-C prints a traceback.
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from buckram.cli.shared.interrupt import CODE, exit_at_once

    exit_at_once()
    from buckram.cli.shared.stdout import name_output, open_standard_files

    open_standard_files()
    from buckram.cli.app import run

    name_output()
    try:
        code = run()
    except KeyboardInterrupt:  # a second one, while the first was told
        code = CODE
    raise SystemExit(code)
