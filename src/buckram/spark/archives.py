"""Compiled modules for Spark's Python processes: `python -m buckram.spark.archives`.

Spark puts `pyspark.zip` first on the path of every Python process that it starts, those that only plan a read or a
write included. It holds sources alone, so each process compiles some two hundred modules anew: 1.3 s of CPU. An archive
may hold compiled modules as well, which the import takes first. It changes the installation of PySpark, so it is for
the user who owns that. Not here: sessions (`session.py`).
"""

from __future__ import annotations

import importlib.util
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path

_TESTS = "/tests/"
"""Folder of PySpark's own tests, which no process imports."""


def compile_archives(library: Path | None = None) -> list[Path]:
    """Compile what is not compiled yet for this Python; returns the archives that were written anew.

    `library`: the directory with the archives, default that of the PySpark that is installed. OSError if it cannot be
    written to; then the archives are as before. Processes that start meanwhile may fail once.
    """
    if library is None:
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            return []
        library = Path(found.origin).parent / "python" / "lib"
    stale = [archive for archive in sorted(library.glob("*.zip")) if not _is_compiled(archive)]
    for archive in stale:
        _compile_into(archive)
    return stale


def _is_compiled(archive: Path) -> bool:
    with zipfile.ZipFile(archive) as found:
        name = next((name for name in found.namelist() if name.endswith(".pyc")), None)
        return name is not None and found.read(name)[:4] == importlib.util.MAGIC_NUMBER


def _compile_into(archive: Path) -> None:
    """Write the archive anew beside the old one, and then put it in its place."""
    fresh = archive.with_name(f"{archive.name}.new")
    try:
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
            for entry in old.infolist():
                if entry.filename.endswith(".pyc"):
                    continue
                data = old.read(entry)
                new.writestr(entry, data)
                if entry.filename.endswith(".py") and _TESTS not in entry.filename:
                    # PySpark takes its own frames out of a traceback by their place.
                    new.writestr(f"{entry.filename}c", _compiled(f"{archive}/{entry.filename}", data))
        fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _compiled(place: str, source: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file, made = Path(folder, "module.py"), Path(folder, "module.pyc")
        file.write_bytes(source)
        # Without times: those in an archive are coarse, and local ones.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(file), str(made), dfile=place, doraise=True, invalidation_mode=mode)
        return made.read_bytes()


def main() -> int:
    try:
        written = compile_archives()
    except OSError as error:
        sys.stderr.write(f"the archives of PySpark cannot be written: {error}; run this as who installed it\n")
        return 1
    for archive in written:
        sys.stdout.write(f"{archive} has compiled modules now\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
