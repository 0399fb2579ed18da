"""Files of history, judged by a reader of its own: names, manifests, parts, and the records that are in them."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from buckram.types import LedgerId
from simulator.archives.model import label_of
from simulator.archives.place import Place


class FileName(NamedTuple):
    """The name of a file of history: its directory, first offset and copy; `kind` is manifest, part or unfinished."""

    directory: str
    base: int
    copy: LedgerId
    kind: str


def parse_name(path: str) -> FileName | None:
    """Return what a path of the place says; None for what is no file of history."""
    directory, _, name = path.rpartition("/")
    kind = "unfinished" if name.startswith(".") else "manifest" if name.startswith("_") else "part"
    words = name.lstrip("._").split(".")[0].split("-")
    if len(words) not in (2, 3) or not all(word.isdecimal() for word in words):
        return None
    return FileName(directory, int(words[0]), int(words[1]), kind)


def copies_in(place: Place, directory: str) -> dict[LedgerId, int]:
    """Return the first offset of each copy with a manifest in the directory."""
    found = [name for path in place.files if (name := parse_name(path)) is not None]
    return {name.copy: name.base for name in found if name.directory == directory and name.kind == "manifest"}


class Unsound(Exception):
    """Says what is wrong with the files of a copy."""


def check_copy(place: Place, directory: str, base: int, copy: LedgerId, digest: str | None) -> dict[str, Any]:
    """Return the manifest of a copy. Unsound unless it and all parts are durable, whole, and what it says."""
    path = f"{directory}/_{base:020d}-{copy:019d}.json"
    data = place.durable_bytes(path)
    if data is None:
        raise Unsound(f"{path} is not durable")
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise Unsound(f"{path} has another digest than the list says")
    manifest: dict[str, Any] = json.loads(data)
    entries = records = 0
    for part in manifest["parts"]:
        content = place.durable_bytes(f"{directory}/{part['file']}")
        if content is None:
            raise Unsound(f"{part['file']} is not durable")
        if hashlib.sha256(content).hexdigest() != part["sha256"]:
            raise Unsound(f"{part['file']} has other bytes than its manifest says")
        if part["first_entry"] != entries:
            raise Unsound(f"{part['file']} begins with entry {part['first_entry']}, {entries} are before it")
        entries, records = entries + part["entries"], records + part["records"]
    if (entries, records) != (manifest["summary"]["last_entry"] + 1, manifest["summary"]["records"]):
        raise Unsound(f"{path}: {entries} entries and {records} records, it tells of {manifest['summary']}")
    return manifest


def records_in(place: Place, directory: str, manifest: dict[str, Any]) -> list[tuple[int, str]]:
    """Return offset and label of each record of a copy, in the order of the files."""
    found: list[tuple[int, str]] = []
    for part in manifest["parts"]:
        table = pq.read_table(io.BytesIO(place.files[f"{directory}/{part['file']}"].data), columns=["offset", "value"])
        offsets, values = table.column("offset").to_pylist(), table.column("value").to_pylist()
        found += [(offset, label_of(value)) for offset, value in zip(offsets, values, strict=True)]
    return found


__all__ = ["FileName", "Unsound", "check_copy", "copies_in", "parse_name", "records_in"]
