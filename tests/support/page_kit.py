"""Runs what pages print, in their order, as a reader does: beside one cluster that `buckram up` started.

How pages are read, as docs/index.md tells readers: the blocks of a page run from its top to its bottom. Those for a
shell are typed into one shell. Each block of Python is a program of its own, except on a page that says that its blocks
are one program (GO_ON). A block below `<!-- not run: REASON -->` is left out. Everything runs in one directory, and
nothing is set beforehand but the PATH.

`python -m tests.support.page_kit PAGE...` runs pages by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GO_ON = "<!-- the Python of this page is one program -->"
SNIPPET_S = 180.0
UP_S = 120.0
_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>[^>]*)-->\n *)?```(?P<language>[a-z]+)\n(?P<code>.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)
_MOST = 3000
_PYTHON = r"""
import io, json, os, sys, traceback
answers = os.fdopen(int(sys.argv[1]), "w")
names = {}
for line in sys.stdin:
    told = json.loads(line)
    if told["begin"]:
        names = {"__name__": "__main__"}
    failed = ""
    try:
        exec(compile("\n" * (told["line"] - 1) + told["code"], told["page"], "exec"), names)
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            failed = traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    print(json.dumps(failed), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Snippet:
    """A block of a page. `number` counts the page's blocks from 1, `line` is the first line of its code."""

    page: Path
    number: int
    line: int
    language: str
    code: str
    not_run: str = ""

    @property
    def needs_spark(self) -> bool:
        return "spark" in self.code

    def __str__(self) -> str:
        return f"{_shown(self.page)}, line {self.line} ({self.language}, block {self.number})"


@dataclass(frozen=True)
class Result:
    """What became of a snippet. `failure` is empty where it did what it says."""

    snippet: Snippet
    seconds: float
    output: str
    failure: str = ""

    def __str__(self) -> str:
        again = f"{sys.executable} -m tests.support.page_kit {_shown(self.snippet.page)}"
        return f"{self.snippet}: {self.failure}\n{self.output[-_MOST:]}\nrun the page again: {again}"


def snippets_of(page: Path, languages: Sequence[str] = ("python", "sh")) -> list[Snippet]:
    """The blocks of these languages, those that are not run among them."""
    text = page.read_text()
    found = []
    for number, match in enumerate(_BLOCK.finditer(text), 1):
        if match["language"] in languages:
            line = text.count("\n", 0, match.start("code")) + 1
            reason = (match["reason"] or "").strip()
            found.append(Snippet(page, number, line, match["language"], textwrap.dedent(match["code"]), reason))
    return found


def run_pages(
    pages: Sequence[Path],
    *,
    bin: Path,
    folder: Path,
    languages: Sequence[str] = ("python", "sh"),
    env: Mapping[str, str] | None = None,
    spark: bool | None = None,
    alone: bool = False,
) -> list[Result]:
    """Run the snippets of the pages, one page after the other, on one cluster that `buckram up` starts in `folder`.

    `bin` has the programs `buckram` and `python`; `env` is added to the environment, from which all of Buckram's own
    settings are taken; with `alone` nothing is set but PATH, LANG, and a HOME that is `folder`. After a failure the
    rest of the page is left out and the next page begins. `spark` says whether snippets that need it run, None: where
    it is installed. `assert_well` tells a test what failed.
    """
    known = {key: value for key, value in os.environ.items() if not key.startswith("BUCKRAM_")}
    known |= {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    known |= {"XDG_CONFIG_HOME": str(folder / ".config")}  # nobody's contexts
    if alone:
        known = bare_environment(bin, folder)
    known |= env or {}
    with_spark = importlib.util.find_spec("pyspark") is not None if spark is None else spark
    results: list[Result] = []
    with running_cluster(bin, folder, known), contextlib.ExitStack() as programs:
        shared = _Lazy(programs, bin, folder, known)
        for page in pages:
            wanted = [one for one in snippets_of(page, languages) if not one.not_run]
            wanted = [one for one in wanted if with_spark or not one.needs_spark]
            results += _run_page(page, wanted, bin, folder, known, shared)
    return results


def bare_environment(bin: Path, home: Path) -> dict[str, str]:
    """What a program finds at its user's first login, with these programs before the system's."""
    return {"PATH": f"{bin}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


def assert_well(results: Sequence[Result]) -> None:
    """AssertionError with every failure, where it is on its page, and how to run that page again."""
    failed = [result for result in results if result.failure]
    assert not failed, "\n\n".join(map(str, failed))


@contextlib.contextmanager
def running_cluster(bin: Path, folder: Path, env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """`buckram up` in this directory. Gives its line."""
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [str(bin / "buckram"), "up", "--json"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log
        )
        assert up.stdout is not None
        try:
            ready, _, _ = select.select([up.stdout], [], [], UP_S)
            line = up.stdout.readline() if ready else b""
            assert line, f"`buckram up` did not get ready: {(folder / 'up.log').read_text()[-_MOST:]}"
            yield json.loads(line)
        finally:
            up.send_signal(signal.SIGTERM)
            try:
                up.wait(60)
            finally:
                up.kill()
                up.stdout.close()


class _Program:
    """A shell or a Python that runs one snippet after another, and answers each with a line at a pipe of its own."""

    def __init__(self, words: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._answers, far = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*words, str(far)],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[far],
            start_new_session=True,
        )
        os.close(far)

    def run(self, line: str, seconds: float = SNIPPET_S) -> tuple[str, str]:
        """Send it this line. Returns its answer, which is empty when it ended or took too long, and its output."""
        assert self._process.stdin is not None
        start = self._output.seek(0, os.SEEK_END)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        limit, answer = time.monotonic() + seconds, b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(limit - time.monotonic(), 0.0))
            more = os.read(self._answers, 1 << 16) if ready else b""
            if not more:
                break
            answer += more
        self._output.seek(start)
        return answer.decode(), self._output.read().decode("utf-8", "replace")

    def close(self) -> None:
        """Let it end, as a reader does who closes the terminal; then end what it left in the background."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()
        os.close(self._answers)


class _Shell:
    """One shell for the blocks of a page; it ends at the first command that fails."""

    def __init__(self, bin: Path, folder: Path, env: Mapping[str, str]) -> None:
        feed = 'while IFS= read -r block; do . "$block" < /dev/null; echo done >&"$0"; done'
        self._program = _Program(["bash", "-euo", "pipefail", "-c", feed], folder, env)
        self._folder = tempfile.TemporaryDirectory()

    def run(self, snippet: Snippet, begin: bool) -> tuple[str, str]:
        file = Path(self._folder.name) / f"block-{snippet.number}"
        file.write_text(snippet.code)
        answer, output = self._program.run(str(file))
        return ("" if answer else "a command failed, or took too long"), output

    def close(self) -> None:
        self._program.close()
        self._folder.cleanup()


class _Python:
    """One process for programs; each begins without names."""

    def __init__(self, bin: Path, folder: Path, env: Mapping[str, str]) -> None:
        self._program = _Program([str(bin / "python"), "-c", _PYTHON], folder, env)

    def run(self, snippet: Snippet, begin: bool) -> tuple[str, str]:
        told = {"code": snippet.code, "line": snippet.line, "page": str(snippet.page), "begin": begin}
        answer, output = self._program.run(json.dumps(told))
        if not answer:
            return "the program ended by itself, or took too long", output
        trace = str(json.loads(answer))
        return (trace.strip().splitlines()[-1] if trace else ""), output + trace

    def close(self) -> None:
        self._program.close()


class _Lazy:
    """The Python for what needs Spark: one for all pages, because a JVM takes long to start."""

    def __init__(self, programs: contextlib.ExitStack, bin: Path, folder: Path, env: Mapping[str, str]) -> None:
        self._programs, self._made = programs, (bin, folder, env)
        self._python: _Python | None = None

    def get(self) -> _Python:
        if self._python is None:
            self._python = _Python(*self._made)
            self._programs.callback(self._python.close)
        return self._python


def _run_page(
    page: Path, wanted: Sequence[Snippet], bin: Path, folder: Path, env: Mapping[str, str], spark: _Lazy
) -> Iterator[Result]:
    together = GO_ON in page.read_text()
    with contextlib.ExitStack() as programs:
        made: dict[str, _Shell | _Python] = {}

        def program(snippet: Snippet) -> _Shell | _Python:
            python = snippet.language == "python"
            if python and (snippet.needs_spark or (together and any(one.needs_spark for one in wanted))):
                return spark.get()
            if snippet.language not in made:
                made[snippet.language] = (_Python if python else _Shell)(bin, folder, env)
                programs.callback(made[snippet.language].close)
            return made[snippet.language]

        begun = False
        for snippet in wanted:
            begin = snippet.language == "python" and not (together and begun)
            begun = begun or snippet.language == "python"
            before = time.monotonic()
            failure, output = program(snippet).run(snippet, begin)
            yield Result(snippet, time.monotonic() - before, output, failure)
            if failure:
                return


def _shown(page: Path) -> Path:
    return page.relative_to(ROOT) if page.is_relative_to(ROOT) else page


def main() -> None:
    """Run pages by hand, and show what each of their snippets prints."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run_pages([page.absolute() for page in given.pages], bin=given.bin.absolute(), folder=Path(folder))
    for result in results:
        print(f"{result.snippet}: {result.failure or 'well'}, {result.seconds:.1f} s")
        if not given.quiet:
            print(textwrap.indent(result.output[-_MOST:], "    "))
    failed = [result for result in results if result.failure]
    print(f"{len(results)} blocks ran, {len(failed)} failed; again: {shlex.join([sys.executable, '-m', *sys.argv])}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
