"""A Java program that takes commands as lines and answers with lines, "WORD REST": for what others.xml brings.

Not here: Pulsar's client (pulsar.py), the programs (java/src), what is checked (test_distributedlog.py and others).
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from javakit import programs
from javakit.programs import NoJava
from tests.interop.apache import BUILD, JVM, SOURCES
from tests.support.polling import wait_until


def classes_of(line: str, folder: str) -> str:
    """Jars of a line and the programs of a folder of java/src. Without them the test is skipped, except in CI."""
    try:
        return programs.class_path(sorted((SOURCES.parent / folder).glob("*.java")), BUILD, line)
    except NoJava as reason:
        if os.environ.get("CI"):
            pytest.fail(f"{line} is not tested: {reason}")
        pytest.skip(f"{line} is not tested: {reason}")


class Talker:
    """A process and what it said so far. It is ready when it has been made; `kill` it in the end."""

    def __init__(self, classes: str, arguments: Sequence[str], log: Path) -> None:
        self._said: dict[str, list[str]] = defaultdict(list)
        self._log, self._ended = log, False
        limits = ["-Xmx512m", "-XX:MaxDirectMemorySize=512m"]
        self._process = programs.spawn(classes, [*limits, *JVM], arguments, log, talks=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.wait("ready", 1)
        except BaseException:
            self.kill()
            raise

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, command: str, word: str) -> str:
        """The next answer of that word after a command."""
        before = len(self._said[word])
        self.tell(command)
        self.wait(word, before + 1)
        return self._said[word][before]

    def count(self, command: str, word: str) -> int:
        return int(self.ask(command, word))

    def numbers(self, word: str) -> list[int]:
        return [int(rest) for rest in self._said[word]]

    def wait(self, word: str, count: int) -> None:
        """Until so many answers of that word have come."""
        said = self._said[word]
        wait_until(lambda: len(said) >= count or self._fails(), f"no {count} {word}, see {self._log}", 90)

    def wait_more(self, word: str, count: int) -> None:
        self.wait(word, len(self._said[word]) + count)

    def kill(self) -> None:
        """kill -9: nothing is closed in order."""
        self._process.kill()
        self._process.wait()
        self._listener.join(10)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _fails(self) -> bool:
        assert not self._said["failed"], f"{self._said['failed'][0]}, see {self._log}"
        assert not self._ended, f"the program ended, see {self._log}"
        return False

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for raw in pipe:
                word, _, rest = raw.decode().rstrip("\n").partition(" ")
                self._said[word].append(rest)
        self._ended = True
