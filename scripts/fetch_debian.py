"""Put servers that tests need beside the Python of a virtual environment: `python scripts/fetch_debian.py .venv`.

etcd, Prometheus and promtool, out of Debian's packages, fetched and checked by apt-get with lists of its own: no root
is needed, nothing of the system changes. What is found already is left alone. Part of `make setup-all`; that one cannot
be had is no error: what needs it is skipped, or says so.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from buckram.errors import ConfigError
from buckram.etcd_server import find_etcd

RELEASE = "trixie"
"""The first release of Debian that has etcd 3.5."""
MIRROR = "http://deb.debian.org/debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
SECONDS = 300


class Wanted(NamedTuple):
    """The programs of one package; `without` says what is skipped where they cannot be had."""

    package: str
    programs: tuple[str, ...]
    without: str


PACKAGES = (
    Wanted("etcd-server", ("etcd",), "tests of metadata on etcd"),
    Wanted("prometheus", ("prometheus",), "tests of dashboards and alert rules"),
    Wanted("promtool", ("promtool",), "tests of alert rules"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch_debian.py", description=__doc__)
    parser.add_argument("venv", type=Path)
    bin: Path = parser.parse_args().venv.absolute() / "bin"
    wanted = [one for one in PACKAGES if not _found(one, bin)]
    if not wanted:
        return 0
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    missing += [] if KEYS.exists() else [str(KEYS)]
    if missing:
        for one in wanted:
            print(f"  {one.programs[0]:<10} MISSING: {one.without}; install it (no {missing[0]} to fetch it with)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for one in wanted:
            try:
                fetch(one, Path(folder), bin)
            except (OSError, subprocess.SubprocessError, StopIteration) as error:
                said = (getattr(error, "stderr", "") or str(error)).strip() or repr(error)
                print(f"  {one.programs[0]:<10} MISSING: {one.without}; {said.splitlines()[-1]}")
            else:
                print(f"  {one.programs[0]:<10} {bin}, from {one.package} of Debian {RELEASE}", flush=True)
    return 0


def _found(one: Wanted, bin: Path) -> bool:
    where = {name: _program(name, bin) for name in one.programs}
    if not all(where.values()):
        return False
    print(f"  {one.programs[0]:<10} {where[one.programs[0]]}", flush=True)
    return True


def _program(name: str, bin: Path) -> str | None:
    if name == "etcd":
        try:
            return str(find_etcd())
        except ConfigError:
            return None
    return str(bin / name) if (bin / name).exists() else shutil.which(name)


def fetch(one: Wanted, folder: Path, bin: Path) -> None:
    """OSError or SubprocessError when it cannot be had."""
    options = _apt_options(folder)
    if not (folder / "updated").exists():
        run(["apt-get", *options, "update"], folder)
        (folder / "updated").touch()
    run(["apt-get", *options, "download", one.package], folder)
    unpacked = folder / one.package
    run(["dpkg-deb", "-x", str(next(folder.glob(f"{one.package}_*.deb"))), str(unpacked)], folder)
    for name in one.programs:
        # Under its name only when it is whole; the old one may be running.
        draft = bin / f"{name}.new"
        shutil.copy2(unpacked / "usr" / "bin" / name, draft)
        draft.replace(bin / name)


def _apt_options(folder: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror()} {RELEASE} main\n")
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=SECONDS, capture_output=True, text=True)


def mirror() -> str:
    """The one that this system uses, as far as it is Debian's."""
    for path in (SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))):
        if path.is_file():
            found = re.search(r"^(?:URIs:|deb)\s.*?(https?://\S+/debian)/?\s*", path.read_text(errors="replace"), re.M)
            if found:
                return found[1]
    return MIRROR


if __name__ == "__main__":
    raise SystemExit(main())
