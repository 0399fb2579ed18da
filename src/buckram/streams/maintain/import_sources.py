"""Sources of imports: files at any location that fsspec knows, and blocks of whole lines of a part of one.

Calls block. Not here: what the lines mean (`streams/maintain/import_source_rows.py`), which part is imported when
(`core/streams/external/imports.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from buckram.core.streams.external.imports import SourceFile
from buckram.errors import ConfigError, InvalidArgument, MalformedSource, ReadFailed
from buckram.extras import needs

ENDINGS = {"parquet": (".parquet",), "jsonl": (".jsonl", ".ndjson", ".json"), "csv": (".csv",)}
_BLOCK_BYTES = 8 * 1024 * 1024
MAX_LINE_BYTES = 32 * 1024 * 1024


class Block(NamedTuple):
    """Whole lines of a file, from byte `start` on, as they are there."""

    start: int
    data: bytes


class ImportSource:
    """A file, or all files below a directory. Raises ConfigError without fsspec, ReadFailed if the place is away."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            wanted = needs(f"import from {url}", "history")
            raise ConfigError(f"{wanted}, and what fsspec needs for this kind of location") from None
        self.url = url
        try:
            self._system, root = url_to_fs(url)
        except Exception as error:
            raise InvalidArgument(f"--from {url}: {_text(error)}") from None
        self._root = str(root).rstrip("/")
        self._is_file = False

    def files(self, kind: str) -> tuple[list[SourceFile], int]:
        """Return the files of this format in the order of their names, and how many others there are.

        Names that begin with a dot or an underscore, and what is below such directories, do not count at all.
        InvalidArgument if there is no file.
        """
        try:
            self._is_file = bool(self._system.isfile(self._root))
            if self._is_file:
                return [SourceFile(self._root.rsplit("/", 1)[-1], int(self._system.size(self._root)))], 0
            found: dict[str, Any] = self._system.find(self._root, detail=True)
        except FileNotFoundError:
            found = {}
        except Exception as error:
            raise ReadFailed(-1, f"{self.url} cannot be read: {_text(error)}") from None
        named = {str(path)[len(self._root) :].lstrip("/"): int(info["size"]) for path, info in found.items()}
        shown = {name: size for name, size in named.items() if not any(part[0] in "._" for part in name.split("/"))}
        files = sorted(SourceFile(name, size) for name, size in shown.items() if name.endswith(ENDINGS[kind]))
        if not files:
            raise InvalidArgument(
                f"--from {self.url}: there is no file whose name ends with {' or '.join(ENDINGS[kind])}; --format "
                "names another kind, and a single file may have any name"
            )
        return files, len(shown) - len(files)

    def open(self, file: SourceFile) -> BinaryIO:
        """Return a file, open for reading anywhere in it. ReadFailed."""
        try:
            opened: BinaryIO = self._system.open(self.path(file), "rb")
            return opened
        except Exception as error:
            raise ReadFailed(-1, f"{self.path(file)} cannot be read: {_text(error)}") from None

    def path(self, file: SourceFile) -> str:
        """Return a file's path, for the location's own file system and for people."""
        return self._root if self._is_file else f"{self._root}/{file.name}"


def blocks(opened: BinaryIO, path: str, start: int, stop: int) -> Iterator[Block]:
    """Yield the lines that begin from byte `start` to before `stop`, in blocks of some MiB.

    The last line of a file need not end with a newline. Raises MalformedSource for a line over MAX_LINE_BYTES, and
    ReadFailed.
    """
    at, size = start, _BLOCK_BYTES
    if start:
        # The line that begins before `start` belongs to the range before.
        at = start - 1
        while True:
            read = _read(opened, path, at, _BLOCK_BYTES)
            if not read:
                return
            newline = read.find(b"\n") + 1
            at += newline or len(read)
            if newline:
                break
    while at < stop:
        read = _read(opened, path, at, size)
        if not read:
            return
        whole = read.rfind(b"\n") + 1
        if len(read) < size and _ends(opened, path, at + len(read)):
            whole = len(read)
        if not whole:
            if size > MAX_LINE_BYTES:
                raise MalformedSource(
                    path, 0, f"the line at byte {at} has over {MAX_LINE_BYTES} bytes, the most that a line may have"
                )
            size *= 2
            continue
        if at + whole > stop:
            # Only lines that begin before `stop`: cut after the last of them.
            last = read.find(b"\n", stop - at - 1) + 1
            whole = min(whole, last) if last else whole
        yield Block(at, read[:whole])
        at, size = at + whole, _BLOCK_BYTES  # The beginning of the next line is read again.


def line_number(opened: BinaryIO, path: str, byte: int) -> int:
    """Return the number of the line that begins at this byte, from 1 on."""
    at, lines = 0, 0
    while at < byte:
        read = _read(opened, path, at, min(_BLOCK_BYTES, byte - at))
        if not read:
            break
        lines, at = lines + read.count(b"\n"), at + len(read)
    return lines + 1


def _ends(opened: BinaryIO, path: str, at: int) -> bool:
    return not _read(opened, path, at, 1)


def _read(opened: BinaryIO, path: str, at: int, size: int) -> bytes:
    try:
        opened.seek(at)
        return opened.read(size)
    except Exception as error:
        raise ReadFailed(-1, f"{path} cannot be read: {_text(error)}") from None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
