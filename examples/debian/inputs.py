"""The records that a Debian machine has: apt's package index and the changelogs under /usr/share/doc.

A record is bytes in Debian's own "Field: value" form. Nothing needs root or changes the machine: where apt's
lists are empty they are fetched by apt itself into a private folder.
"""

from __future__ import annotations

import email.utils
import gzip
import os
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path

APT_LISTS = Path("/var/lib/apt/lists")
APT_HELPER = Path("/usr/lib/apt/apt-helper")
DOCS = Path("/usr/share/doc")
FETCH_SECONDS = 150
TRAILER = re.compile(rb"^ -- (?P<who>.*?) {1,2}(?P<when>[A-Z][a-z]{2}, .*)$", re.MULTILINE)
HEADING = re.compile(rb"^(?P<source>[a-zA-Z0-9][a-zA-Z0-9+.-]*) \((?P<version>[^)\s]+)\)", re.MULTILINE)
Say = Callable[[str], None]


def is_debian() -> bool:
    return Path("/etc/debian_version").exists()


def packages(private: Path, say: Say) -> list[bytes]:
    """Every record of the package index; empty, with the reason said, where there is none to be had."""
    for source in (_apt_cache, _list_files):
        found = source()
        if found:
            return found
    say("apt's package lists are empty here: fetching them into a private folder (no root needed)")
    found, reason = _fetch(private)
    if not found:
        say(f"no package index: {reason}; going on with the changelogs")
    return found


def _stanzas(text: bytes) -> list[bytes]:
    return [part for part in (p.strip(b"\n") for p in text.split(b"\n\n")) if part.startswith(b"Package:")]


def _output(command: list[str], seconds: float = 60.0) -> bytes:
    try:
        return subprocess.run(command, capture_output=True, timeout=seconds, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""


def _apt_cache() -> list[bytes]:
    return _stanzas(_output(["apt-cache", "dumpavail"]))


def _list_files() -> list[bytes]:
    found: list[bytes] = []
    if APT_LISTS.is_dir() and APT_HELPER.exists():
        for path in sorted(APT_LISTS.glob("*_Packages*")):
            # apt's own helper opens whatever compression apt chose: lz4, gz, xz or none.
            found += _stanzas(_output([str(APT_HELPER), "cat-file", str(path)]))
    return found


def _fetch(private: Path) -> tuple[list[bytes], str]:
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (private / folder).mkdir(parents=True, exist_ok=True)
    (private / "state" / "status").touch()
    options = [
        f"-oDir::State={private}/state",
        f"-oDir::State::status={private}/state/status",
        f"-oDir::Cache={private}/cache",
        "-oAPT::Sandbox::User=",
        "-oAcquire::Languages=none",
        "-oDebug::NoLocking=1",
    ]
    try:
        done = subprocess.run(
            ["apt-get", *options, "update"], capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except FileNotFoundError:
        return [], "apt-get is not installed"
    except subprocess.TimeoutExpired:
        return [], f"apt-get update took longer than {FETCH_SECONDS} s"
    found = _stanzas(_output(["apt-cache", *options, "dumpavail"]))
    problem = (done.stderr.strip().splitlines() or ["apt-get update brought no lists"])[-1]
    return found, problem


def changelog_entries() -> list[bytes]:
    """Every dated entry of the changelogs under /usr/share/doc, as Package, Version, Maintainer, Date, Changes."""
    found: list[bytes] = []
    if not DOCS.is_dir():
        return found
    for folder in sorted(DOCS.iterdir()):
        # A package that shares another's folder through a link has that changelog, too: its records count.
        for path in sorted(folder.glob("changelog*")) if folder.is_dir() else []:
            if path.is_file():
                found += _entries(folder.name.encode(), _read(path))
    return found


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error):
        return b""  # a broken or unreadable file of the machine is not our input


def _entries(package: bytes, text: bytes) -> Iterator[bytes]:
    """Cut a changelog at its trailer lines (` -- who  when`); what carries no date is no entry."""
    begin = 0
    for trailer in TRAILER.finditer(text):
        body, begin = text[begin : trailer.start()], trailer.end()
        date = _utc(trailer["when"])
        headings = list(HEADING.finditer(body))
        if date is None or not headings:
            continue
        heading = headings[-1]  # earlier ones are undated leftovers
        fields = [
            b"Package: " + package,
            b"Source: " + heading["source"],
            b"Version: " + heading["version"],
            b"Maintainer: " + trailer["who"].strip(),
            b"Date: " + date,
            b"Changes:" + body[heading.end() :].rstrip(),
        ]
        yield b"\n".join(fields)


def _utc(text: bytes) -> bytes | None:
    try:
        when = email.utils.parsedate_to_datetime(text.decode("ascii", "replace"))
        return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    except (ValueError, TypeError, OverflowError):
        return None


def describe_machine() -> str:
    name = Path("/etc/os-release")
    text = name.read_text() if name.exists() else ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return f"{match.group(1) if match else 'unknown system'}, {os.cpu_count()} cores"
