"""One cluster whose bookies serve HTTP, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.http_kit import Said, ask

from buckram.launch.processes import BookieProcess, stop_all


@dataclass
class Site:
    """Bookies as processes; `uri` names their cluster."""

    root: Path
    children: list[BookieProcess] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"sqlite://{self.root / 'metadata.db'}"

    def add(self, *options: str) -> BookieProcess:
        number = len(self.children) + 1
        child = BookieProcess(
            self.uri,
            self.root / f"bookie-{number}",
            bookie_id=f"bookie-{number}",
            options=("--http", "127.0.0.1:0", *options),
            environment={"BUCKRAM_STORE_SEGMENT_BYTES": str(4 << 20)},
        )
        self.children.append(child)
        child.start()
        child.wait_ready()
        return child

    def ask(self, method: str, path: str, body: str | None = None, *, bookie: int = 1) -> Said:
        ready = self.children[bookie - 1].ready
        assert ready is not None
        assert ready.http is not None
        return ask(ready.http, method, path, body)


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("admin"))
    try:
        for _ in range(3):
            made.add()
        yield made
    finally:
        stop_all(made.children)
