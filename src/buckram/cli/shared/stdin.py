"""Standard input as batches of lines, for commands that run on an event loop. Works for pipes, files and terminals."""

from __future__ import annotations

import asyncio
import os
import threading

CHUNK_BYTES = 1024 * 1024
CHUNKS_WAITING = 4


class Lines:
    """`async for batch in Lines()`: lists of lines without their ends, including an unterminated last line.

    A daemon thread reads big chunks, because files cannot be waited for on a loop; at most CHUNKS_WAITING wait. `stop`
    ends the iteration after what was taken so far, even while the thread still waits for input. The part that was read
    of a line longer than `longest` bytes is handed out: the caller refuses it instead of waiting for its end.
    """

    def __init__(self, longest: int, descriptor: int = 0) -> None:
        self._descriptor, self._longest = descriptor, longest
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_WAITING)
        self._rest = b""
        self._stopped = self._ended = False
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._chunks.put_nowait(None)

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            chunk = None if self._stopped or self._ended else await self._chunks.get()
            if chunk is None:
                self._ended = True
                rest, self._rest = self._rest, b""
                # After a stop a half line is input that was cut off, not an entry.
                if rest and not self._stopped:
                    return [rest]
                raise StopAsyncIteration
            self._room.release()
            lines = (self._rest + chunk).split(b"\n")
            if len(lines[-1]) <= self._longest:
                self._rest = lines.pop()
            else:
                self._rest = b""
            if lines:
                return lines

    def _read(self) -> None:
        while True:
            self._room.acquire()
            try:
                chunk = os.read(self._descriptor, CHUNK_BYTES)
            except OSError:
                chunk = b""
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk or None)
            except RuntimeError:
                return  # the loop is closed: the command has ended
            if not chunk:
                return
