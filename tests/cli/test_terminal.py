"""What a terminal is sent, and what encodings that lack characters are."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from buckram.cli.shared.stdout import Payload, Screen, clear_screen, obeyed, visible

EVIL = "a\x1b]0;title\x07\x9b31m\u202eb\x7f\r\té\n"
SHOWN = "a\\x1b]0;title\\x07\\x9b31m\\u202eb\\x7f\\x0d\té\n"
CODE = """
import sys
from buckram.cli.shared.stdout import Payload, name_output
name_output()
text = {text!a}
print(text, end="")
print(text, end="", file=sys.stderr)
payload = Payload(raw={raw!r})
payload.write(text.encode() + b"\\xff\\n")
payload.flush()
"""


def screen() -> tuple[Screen, io.BytesIO]:
    held = io.BytesIO()
    return Screen(io.BufferedWriter(held), encoding="utf-8", write_through=True), held  # type: ignore[arg-type]


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("plain\n\tüñ 漢字 🎉") == "plain\n\tüñ 漢字 🎉"
    for number in (*range(0x20), *range(0x7F, 0xA0)):
        assert (visible(chr(number)) == chr(number)) is (chr(number) in "\t\n")


def test_our_own_signs_go_through(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, held = screen()
    monkeypatch.setattr(sys, "stdout", terminal)
    clear_screen()
    print(EVIL, end="", flush=True)
    print("\x1b[1m", end="", file=obeyed(terminal), flush=True)
    assert held.getvalue().decode() == f"\x1b[2J\x1b[H{SHOWN}\x1b[1m"


def test_bytes_that_are_cut_within_a_character_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, held = screen()
    monkeypatch.setattr(sys, "stdout", terminal)
    payload = Payload()
    for piece in (b"\xc3", b"\xa9\x1b", b"[m\xff"):
        payload.write(piece)
    payload.flush()
    assert held.getvalue() == "é\\x1b[m\\xff".encode()


def at_terminal(code: str) -> str:
    """What a process of Python sends to a terminal, with its line ends as the process wrote them."""
    pid, master = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execv(sys.executable, [sys.executable, "-c", code])
    found = b""
    try:
        while piece := os.read(master, 65536):
            found += piece
    except OSError:
        pass  # its other end is closed
    finally:
        os.close(master)
    assert os.waitpid(pid, 0)[1] == 0, found
    return found.decode().replace("\r\n", "\n")


def test_at_a_terminal_text_errors_and_payloads_are_escaped_unless_raw() -> None:
    assert at_terminal(CODE.format(text=EVIL, raw=False)) == SHOWN * 3 + "\\xff\n"
    raw = at_terminal(CODE.format(text="a\x1b[31mb\n", raw=True).replace('b"\\xff\\n"', 'b""'))
    assert raw == "a\\x1b[31mb\n" * 2 + "a\x1b[31mb\n"


@pytest.mark.parametrize(
    ("environment", "encoding"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "ascii"),
        ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, "ascii"),
        ({"LC_ALL": "C"}, "utf-8"),
        ({"PYTHONIOENCODING": "latin-1"}, "latin-1"),
    ],
)
def test_no_name_ends_a_list(environment: Mapping[str, str], encoding: str, tmp_path: Path) -> None:
    """In a pipe bytes are exact, and so is what the encoding has; the rest is escaped."""
    text = "défaut 漢字 \udcff\n"
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONIOENCODING", "LC_ALL", "PYTHONUTF8")}
    code = (
        CODE.format(text=text, raw=False)
        .replace("text.encode()", 'b"\\x1b"')
        .replace('print(text, end="", file=sys.stderr)', "")
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env={**kept, **environment}, timeout=60)
    assert done.stderr == b""
    named = "défaut 漢字 ".encode(encoding, "backslashreplace")
    assert done.stdout == named + b"\xff\n\x1b\xff\n"
