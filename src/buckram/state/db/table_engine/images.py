"""Writing images (the pages of one state) as SQLite database files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from buckram.core.db.wal_format import PAGE_BYTES
from buckram.runtime.disk.syncing import sync_file
from buckram.state.db.table_engine.wal_files import Image


async def write_in_thread(image: Image, path: Path) -> int:
    """Write a file as `write_image` does, in a thread, and close the image. Cancelling abandons only the wait."""
    work = asyncio.get_running_loop().run_in_executor(None, write_image, image, path)
    work.add_done_callback(lambda done: image.close())
    return await asyncio.shield(work)


def write_image(image: Image, path: Path) -> int:
    """Write a database file; it has its name when all of it is on the disk. Returns its bytes. Raises OSError."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        with part.open("xb") as out:
            for page in image.pages():
                out.write(page)
            out.flush()
            sync_file(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return image.size * PAGE_BYTES


__all__ = ["write_image", "write_in_thread"]
