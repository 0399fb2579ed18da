"""The checkpoint of an emulated query: its id, the log of offsets, the log of commits, as the files that Spark writes.

All checkpoints of a life are in one `Files`, by their paths, so that they can be copied, put back, moved and deleted
behind the query's back. Those of paths without a scheme are in the driver's file system, where the sink looks into
them. Not here: a fork by Buckram (`operating.py`), which needs the checkpoint as objects of the cluster.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

METADATA, OFFSETS, COMMITS = "metadata", "offsets", "commits"
STARTED = "simulator.started"
COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(slots=True)
class Files:
    """All files of all checkpoints, by their full paths."""

    texts: dict[str, str] = field(default_factory=dict)

    def of(self, path: str) -> dict[str, str]:
        """Return the files of a checkpoint by their names in it."""
        return {name.removeprefix(f"{path}/"): text for name, text in self.texts.items() if name.startswith(f"{path}/")}

    def put(self, path: str, files: dict[str, str]) -> None:
        """Have a checkpoint consist of these files."""
        self.remove(path)
        self.texts |= {f"{path}/{name}": text for name, text in files.items()}

    def remove(self, path: str) -> None:
        for name in [name for name in self.texts if name.startswith(f"{path}/")]:
            del self.texts[name]

    def read_local(self, path: str, batch: int) -> str:
        """Return what a driver finds of the log of offsets in its own file system. Raises OSError."""
        try:
            return self.texts[f"{path}/{OFFSETS}/{batch}"]
        except KeyError:
            raise FileNotFoundError(path) from None


class Checkpoint:
    """The checkpoint at a path."""

    def __init__(self, files: Files, path: str) -> None:
        self.files, self.path = files, path

    @property
    def query(self) -> str:
        """Return the id of its query; empty where no query began."""
        text = self.files.texts.get(f"{self.path}/{METADATA}")
        return "" if text is None else str(json.loads(text)["id"])

    def begin(self, query: str) -> None:
        self._write(METADATA, json.dumps({"id": query}))

    def planned(self) -> list[int]:
        """Return the numbers of the batches in the log of offsets, in order."""
        return self._numbers(OFFSETS)

    def committed(self) -> list[int]:
        return self._numbers(COMMITS)

    def offset(self, batch: int) -> str:
        """Return the end of a batch, as JSON."""
        return self.files.texts[f"{self.path}/{OFFSETS}/{batch}"].split("\n")[2]

    def started(self, batch: int) -> str:
        """Return the start of a batch when it was planned, which Spark itself does not write down."""
        about = json.loads(self.files.texts[f"{self.path}/{OFFSETS}/{batch}"].split("\n")[1])
        return str(about["conf"][STARTED])

    def plan(self, batch: int, end: str, at_ms: int, start: str) -> bool:
        """Write the end of a batch. False: another driver has written it meanwhile, and Spark gives up.

        `start` is kept for the model.
        """
        name = f"{OFFSETS}/{batch}"
        if f"{self.path}/{name}" in self.files.texts:
            return False
        about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": {STARTED: start}})
        self._write(name, f"v1\n{about}\n{end}")
        return True

    def commit(self, batch: int) -> None:
        self._write(f"{COMMITS}/{batch}", COMMITTED)

    def as_of(self, batch: int) -> dict[str, str]:
        """Return the files that an older copy has: nothing behind a batch."""
        return {
            name: text
            for name, text in self.files.of(self.path).items()
            if name == METADATA or int(name.rpartition("/")[2]) <= batch
        }

    def _numbers(self, folder: str) -> list[int]:
        found = self.files.of(self.path)
        return sorted(int(name.rpartition("/")[2]) for name in found if name.startswith(f"{folder}/"))

    def _write(self, name: str, text: str) -> None:
        self.files.texts[f"{self.path}/{name}"] = text


__all__ = ["COMMITS", "METADATA", "OFFSETS", "Checkpoint", "Files"]
