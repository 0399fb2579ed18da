"""Files that pass through a server: a body that is stored on disk until it is complete, and files as answers.

Memory is bounded, however large the file; a slow client holds up nothing but its file. Not here: how large they may
be, and the number that may pass at once (limits of each server).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from buckram.core.tenants.fair_share import FairShare
from buckram.serve.http.limits import MIB
from buckram.serve.http.problems import full
from buckram.serve.http.streamed_answers import PiecesAnswer

_PIECE_BYTES = MIB
_PREFIX = "buckram-db-"
SQLITE = "application/vnd.sqlite3"
"""The media type of a file of SQLite's."""


NOT_LOADED = "nothing of the file was loaded"
"""End of the error when loading a file is no longer allowed."""


class Transfers:
    """Counts the files that pass through a server."""

    def __init__(self, what: str, limit: int, *, option: str, do: str) -> None:
        """Count transfers. `option`: the name of the limit; `what` and `do`: parts of the error beyond it."""
        self._what, self._option, self._do = what, option, do
        self._share = FairShare(limit)

    @property
    def running(self) -> int:
        """Number of running transfers."""
        return self._share.total

    def enter(self, holder: str) -> Callable[[], None]:
        """Count one more of a principal (`holder_of`); the returned function ends it, and is to be called once.

        Raises HttpProblem 503 beyond the limit.
        """
        share = self._share
        if not share.has_room(holder):
            raise full(
                "TOO_MANY_TRANSFERS",
                share.said(holder, f"{self._what} are running"),
                share.total,
                share.limit,
                option=self._option,
                do=self._do,
                retry_after_s=5,
            )
        share.take(holder)
        return partial(share.give, holder)

    @contextmanager
    def room(self, holder: str) -> Iterator[None]:
        """Count one meanwhile. Raises HttpProblem 503."""
        leave = self.enter(holder)
        try:
            yield
        finally:
            leave()


class Folder:
    """A folder of one request, for one file. `remove` may be called from anywhere."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.file = self._path / "main.db"

    def remove(self) -> None:
        """Remove the folder with the file. Idempotent."""
        shutil.rmtree(self._path, ignore_errors=True)


@asynccontextmanager
async def kept(pieces: AsyncIterator[bytes]) -> AsyncIterator[Path]:
    """Store a body in a temporary file while the context lasts. Raises what reading the body raises, and OSError."""
    loop, folder = asyncio.get_running_loop(), Folder()
    try:
        with folder.file.open("xb", buffering=0) as out:
            gathered = bytearray()
            async for piece in pieces:
                gathered += piece
                if len(gathered) >= _PIECE_BYTES:
                    await loop.run_in_executor(None, _write_all, out, bytes(gathered))
                    gathered.clear()
            await loop.run_in_executor(None, _write_all, out, bytes(gathered))
        yield folder.file
    finally:
        folder.remove()


def _write_all(out: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[out.write(left) :]


def file_answer(
    folder: Folder,
    *,
    media: str,
    stuck_s: float,
    headers: Mapping[str, str],
    over: Callable[[], str] = lambda: "",
    ended: Callable[[], None] = lambda: None,
) -> PiecesAnswer:
    """The file of a folder, which is removed at the end; arguments are those of PiecesAnswer. Raises OSError."""

    def done() -> None:
        folder.remove()
        ended()

    size = folder.file.stat().st_size
    pieces = _pieces(folder.file)
    return PiecesAnswer(pieces, size=size, media=media, stuck_s=stuck_s, headers=headers, over=over, ended=done)


async def _pieces(path: Path) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    with path.open("rb", buffering=0) as file:
        while piece := await loop.run_in_executor(None, partial(file.read, _PIECE_BYTES)):
            yield piece
