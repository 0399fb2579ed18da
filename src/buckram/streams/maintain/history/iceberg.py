"""An Iceberg table around a stream's history: its files as snapshots, for engines that read tables by their path.

The table is in the directory of the files, below `_iceberg`, in the layout that Hadoop's tables have: `metadata/
vN.metadata.json` and `version-hint.text`. A new version is published by creating its file, which fails if it is there,
so of two processes one commits first and the other begins anew. Calls block. It needs pyiceberg, so import it only
where there is a table. Not here: which files belong to the table (`streams/maintain/history/table.py`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.serializers import FromByteStream
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.table.update.snapshot import ExpireSnapshots

from buckram.core.streams.external.history import copy_of
from buckram.errors import CorruptEntry, NoSuchEntry, WriteFailed
from buckram.streams.shared.history_parts import HISTORY_SCHEMA
from buckram.streams.shared.locations import TABLE, FileLocation
from buckram.types import LedgerId

_HINT = "version-hint.text"
_KEPT_SNAPSHOTS = 20
_LOOK_EVERY = 16
"""Number of versions after which all manifests are read to find unneeded ones; also done when snapshots are removed."""
_SETTINGS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.retry.num-retries": "0",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("offset", "timestamp", "append_time", "txid")},
}
"""Old versions go; the commit is not repeated by pyiceberg, because the files are chosen anew after a conflict; parts
have statistics of these columns only."""


class TableMoved(Exception):
    """Another process committed to the table first."""


class HistoryTable:
    """The table of one directory of history, as it was when it was loaded; `exists` is False if there is none.

    Raises ReadFailed, WriteFailed, ConfigError as a Place does, CorruptEntry for metadata that cannot be read, and
    TableMoved if another process commits meanwhile.
    """

    def __init__(self, directory: str) -> None:
        self.location = f"{directory}/{TABLE}"
        self._directory = directory
        self._catalog = _PathCatalog(self.location)
        self._table = self._catalog.load()
        self.files = self._current_files()
        """The files of the present snapshot by the ids of their copies."""

    @property
    def exists(self) -> bool:
        return self._table is not None

    def commit(self, add: Iterable[str], remove: Iterable[LedgerId]) -> None:
        """Publish one snapshot with these files and without those of these copies. TableMoved.

        `add`: names of files in the directory. The table is created if there is none.
        """
        gone = [file for copy in remove for file in self.files.get(copy, ())]
        table = self._table or self._catalog.created()
        new = [self._described(table, name) for name in add]
        try:
            with table.transaction() as change:
                update = change.update_snapshot()
                with update.overwrite() if gone else update.merge_append() as snapshot:
                    for file in new:
                        snapshot.append_data_file(file)
                    for file in gone:
                        snapshot.delete_data_file(file)
                # Snapshots that name deleted files cannot be read, so they go with them.
                known = change.table_metadata.snapshots[:-1]
                old = known if gone else known[: -(_KEPT_SNAPSHOTS - 1)]
                if old:
                    ExpireSnapshots(change).by_ids([one.snapshot_id for one in old]).commit()
        except (CommitFailedException, FileNotFoundError):
            raise TableMoved from None  # The process that commits deletes what only older versions need.

    def _described(self, table: Table, name: str) -> DataFile:
        try:
            return parquet_file_to_data_file(table.io, table.metadata, f"{self._directory}/{name}")
        except FileNotFoundError:
            raise NoSuchEntry(copy_of(name) or -1, 0, f"file {name} is missing at {self._directory}") from None

    def _current_files(self) -> dict[LedgerId, list[DataFile]]:
        found: dict[LedgerId, list[DataFile]] = {}
        snapshot = None if self._table is None else self._table.current_snapshot()
        if self._table is None or snapshot is None:
            return found
        try:
            for manifest in snapshot.manifests(self._table.io):
                for entry in manifest.fetch_manifest_entry(self._table.io):
                    copy = copy_of(entry.data_file.file_path.rsplit("/", 1)[-1])
                    if copy is not None:
                        found.setdefault(copy, []).append(entry.data_file)
        except FileNotFoundError:
            raise TableMoved from None
        return found


class _PathCatalog(NoopCatalog):  # type: ignore[misc]  # pyiceberg is not followed by mypy
    """Loads and commits one table by its path."""

    def __init__(self, location: str) -> None:
        super().__init__("path")
        self._location = location
        self._place = FileLocation(f"{location}/metadata")
        self._io = _PlaceIO(location.removesuffix(f"/{TABLE}"))

    def load(self) -> Table | None:
        """Return the newest version of the table; None if there is none."""
        version = self._hinted()
        known = {number for name in self._place.names() if (number := _version(name)) is not None}
        if not known:
            return None
        while version + 1 in known:  # A crash left the hint behind.
            version += 1
        file = _file(version if version in known else max(known))
        try:
            metadata = FromByteStream.table_metadata(io.BytesIO(self._place.read(file, -1)))
        except (ValueError, ValidationError) as error:
            why = f"{file} at {self._place.location} is no table's metadata: {error}"
            raise CorruptEntry(self._location, -1, 0, why) from None
        return self._table(metadata, file)

    def created(self) -> Table:
        """Return a new table without a snapshot, which comes into being with its first commit."""
        schema = assign_fresh_schema_ids(self._convert_schema_if_needed(HISTORY_SCHEMA))
        settings = {**_SETTINGS, "schema.name-mapping.default": schema.name_mapping.model_dump_json()}
        metadata = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, self._location, settings
        )
        return self._table(metadata, "")

    def commit_table(self, table: Any, requirements: Sequence[Any], updates: Sequence[Any]) -> CommitTableResponse:
        """Publish the next version. CommitFailedException if another process has published it."""
        for requirement in requirements:
            requirement.validate(table.metadata)
        before = table.metadata_location.rsplit("/", 1)[-1]
        metadata = update_table_metadata(
            table.metadata, tuple(updates), enforce_validation=False, metadata_location=table.metadata_location or None
        )
        version = (_version(before) or 0) + 1
        there = self._place.names()
        if not self._place.create(_file(version), metadata.model_dump_json(exclude_none=True).encode()):
            raise CommitFailedException(f"version {version} is there already")
        with suppress(WriteFailed):  # The hint is behind then, as after a crash; the next commit writes it.
            self._place.write(_HINT, str(version).encode(), -1)
        made = self._table(metadata, _file(version))
        kept = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        gone = any(snapshot.snapshot_id not in kept for snapshot in table.metadata.snapshots)
        self._sweep(there, made, manifests=gone or version % _LOOK_EVERY == 0)
        return CommitTableResponse(metadata=metadata, metadata_location=made.metadata_location)

    def _sweep(self, there: Iterable[str], table: Table, *, manifests: bool) -> None:
        """Delete what no snapshot needs of the files that were there before this commit.

        A process that wrote some of them for a commit of its own began with an older version, so it fails.
        """
        needed = {_HINT, table.metadata_location.rsplit("/", 1)[-1]}
        needed |= {log.metadata_file.rsplit("/", 1)[-1] for log in table.metadata.metadata_log}
        for snapshot in table.metadata.snapshots:
            needed.add(snapshot.manifest_list.rsplit("/", 1)[-1])
            if manifests:
                needed |= {one.manifest_path.rsplit("/", 1)[-1] for one in snapshot.manifests(table.io)}
        for name in there:
            is_manifest = name.endswith(".avro") and not name.startswith("snap-")
            if name not in needed and (manifests or not is_manifest):
                self._place.delete(name)

    def _table(self, metadata: TableMetadata, file: str) -> Table:
        location = f"{self._place.location}/{file}" if file else ""
        return Table(("history",), metadata, location, self._io, self)

    def _hinted(self) -> int:
        with suppress(FileNotFoundError, ValueError), self._place.open(_HINT) as hint:
            return int(hint.read())
        return 0


def _version(name: str) -> int | None:
    found = re.fullmatch(r"v(\d+)\.metadata\.json", name)
    return int(found[1]) if found else None


def _file(version: int) -> str:
    return f"v{version}.metadata.json"


# -- files, for pyiceberg ---------------------------------------------------------------------------------


class _PlaceIO(FileIO):  # type: ignore[misc]
    """Reads and writes at any location of history, but only in the one directory of the table.

    A table's metadata have the locations of its files, and a user who can write a file there could name any location,
    also one that only this process may reach.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directories = directory, f"{directory}/{TABLE}/metadata"

    def new_input(self, location: str) -> InputFile:
        return _Input(location, *self._split(location))

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, *self._split(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        place, file = self._split(location if isinstance(location, str) else location.location)
        place.delete(file)

    def _split(self, location: str) -> tuple[FileLocation, str]:
        directory, _, file = location.rpartition("/")
        if directory not in self._directories or file in ("", ".", ".."):
            why = (
                f"the table at {self._directories[0]} names {location}, which is no file of it; nothing was done there"
            )
            raise CorruptEntry(location, -1, 0, why)
        return FileLocation(directory), file


class _Input(InputFile):  # type: ignore[misc]
    def __init__(self, location: str, place: FileLocation, file: str) -> None:
        super().__init__(location)
        self._place, self._file = place, file

    def __len__(self) -> int:
        with self._place.open(self._file) as opened:
            return opened.seek(0, io.SEEK_END)

    def exists(self) -> bool:
        return self._file in self._place.names()

    def open(self, seekable: bool = True) -> Any:
        return self._place.open(self._file)


class _Output(OutputFile):  # type: ignore[misc]
    def __init__(self, location: str, place: FileLocation, file: str) -> None:
        super().__init__(location)
        self._place, self._file = place, file

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return bool(self.to_input_file().exists())

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._place, self._file)

    def create(self, overwrite: bool = False) -> Any:
        return _Buffer(lambda data: self._place.write(self._file, data, -1))


class _Buffer(io.BytesIO):
    """Gathers a file and writes it whole when it is closed; the files of a table's metadata are small."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write

    def close(self) -> None:
        if not self.closed:
            self._write(self.getvalue())
        super().close()
