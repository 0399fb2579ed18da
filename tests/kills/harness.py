"""Runs a command as a process that is killed before one of its changes, then again, and judges what comes of it.

`dying/sitecustomize.py` counts the changes and kills. A `Case` is a state that was prepared for one run of a command,
and what has to hold afterwards. The rules for all of them: the second run succeeds with the right outcome, or its error
names a command that does; nothing that was acknowledged is lost; no traceback, no bug (exit code 70), and no waiting
for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.polling import wait_until

from buckram.cli.shared.exits import Exit

DYING = Path(__file__).parent / "dying"
LINE = 128
DEADLINE_S = 90.0
DONE = ("nothing is left to do", "nothing was changed")
"""What an error says where the state is one to go on with."""
NEVER = 0
"""The number of no change: the command is watched, and lives."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a process said until its end. `changes`: those that it made, or was about to make, in their order."""

    code: int
    out: str
    err: str
    changes: tuple[str, ...] = ()

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.strip().splitlines()[-1])
        return found


def nothing(*_: object) -> None:
    """Hold whatever happened."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prepared run of a command.

    `words` follow `buckram`. `folder` has all files that it changes. `died` is called after its death and checks what
    has to hold already, `check` after the run that succeeds. A command that serves has `ready`, which is called with
    its ready line and uses it; then it is asked to end. `again`: the words of the second run, where they are others.
    """

    words: Sequence[str]
    folder: Path
    check: Callable[[Ended], None] = nothing
    died: Callable[[], None] = nothing
    ready: Callable[[dict[str, Any]], None] | None = None
    again: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Failed(AssertionError):
    """A kill after which something does not hold."""


def watching(folder: Path, at: int, log: Path) -> dict[str, str]:
    """Return what has a process count its changes, and die before this one."""
    paths = os.pathsep.join([str(DYING), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = {"PYTHONPATH": paths, "BUCKRAM_KILL_IN": str(folder)}
    return {**given, "BUCKRAM_KILL_AT": str(at), "BUCKRAM_KILL_LOG": str(log)}


def changes_in(log: Path) -> tuple[str, ...]:
    read = log.read_bytes() if log.exists() else b""
    return tuple(read[place : place + LINE].decode(errors="replace").strip() for place in range(0, len(read), LINE))


def run(case: Case, words: Sequence[str], at: int | None, *, use: bool = True) -> Ended:
    """Run `buckram WORDS` to its end. `at`: the change before which it dies; None: nothing watches it.

    `use`: whether a command that serves is used before it is asked to end.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BUCKRAM_")}
    with tempfile.TemporaryDirectory(prefix="buckram-kill-") as name:
        out, err, log = (Path(name, one) for one in ("out", "err", "changes"))
        given = {**clean, **case.environment}
        if at is not None:
            given |= watching(case.folder, at, log)
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                [sys.executable, "-m", "buckram", *words],
                env=given, stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err, process_group=0,
            )  # fmt: skip
        try:
            if case.ready is not None:
                _serve(case, process, out, use=use)
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"it hangs: `buckram {shlex.join(words)}` said {err.read_text()[-2000:]}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Ended(code, out.read_text(), err.read_text(), changes_in(log))


def _serve(case: Case, process: subprocess.Popen[bytes], out: Path, *, use: bool) -> None:
    """Wait for the ready line, use what serves, and ask it to end."""

    def said() -> bool:
        return process.poll() is not None or b"\n" in out.read_bytes()

    wait_until(said, "no ready line", DEADLINE_S)
    if b"\n" not in out.read_bytes():
        return
    if use and case.ready is not None:
        case.ready(json.loads(out.read_text().splitlines()[0]))
    process.terminate()


def nobody_lives(folder: Path) -> bool:
    """Return whether no process has the folder in its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                    return False
    return True


def undisturbed(case: Case) -> Ended:
    """Run a command that is watched and lives, and check its outcome; returns it, with its changes."""
    done = run(case, case.words, NEVER)
    _check_said(done, "undisturbed")
    if done.code != Exit.OK:
        raise Failed(f"undisturbed it ended with code {done.code}: {done.err}")
    case.check(done)
    return done


def killed(case: Case, at: int) -> None:
    """Kill a command before a change, run it again, and check. If it makes fewer changes, it ended, and nobody heard of
    it. Raises AssertionError."""
    dead = run(case, case.words, at, use=False)
    _check_said(dead, "killed")
    if len(dead.changes) < at and dead.code != Exit.OK:
        raise Failed(f"it ended by itself with code {dead.code}: {dead.err}")
    wait_until(partial(nobody_lives, case.folder), "its processes live on")
    case.died()
    again = _run_again(case)
    if again.code != Exit.OK:
        again = _as_told(case, again)
    case.check(again)


def _run_again(case: Case) -> Ended:
    """Run the command again; as often as it says that it may succeed later, which is as long as a session lives."""
    limit = time.monotonic() + DEADLINE_S
    while True:
        again = run(case, case.again or case.words, None)
        _check_said(again, "run again")
        if again.code != Exit.TRY_AGAIN or time.monotonic() > limit:
            return again


def _as_told(case: Case, refused: Ended) -> Ended:
    """Run the command that an error names; returns how it ended, which is well. Or nothing is left to do, it says."""
    told = re.findall(r"`buckram ([^`]+)`", refused.err)
    if not told and any(one in refused.err for one in DONE):
        return refused
    if not told:
        raise Failed(f"again it ended with code {refused.code} and named no command: {refused.err}")
    words = list(case.words)
    uri = words[words.index("--metadata") + 1] if "--metadata" in words else ""
    there = replace(case, environment={**case.environment, **({"BUCKRAM_METADATA": uri} if uri else {})}, ready=None)
    done = run(there, shlex.split(told[0]), None)
    _check_said(done, "as told")
    if done.code != Exit.OK:
        raise Failed(f"again it said {refused.err}, and `buckram {told[0]}` ended with {done.code}: {done.err}")
    return done


def _check_said(done: Ended, when: str) -> None:
    if "Traceback" in done.err or done.code == Exit.INTERNAL:
        raise Failed(f"{when}: a traceback, or a bug (code {done.code}): {done.err[-3000:]}")
