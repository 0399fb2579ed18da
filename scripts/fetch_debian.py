"""Put servers that tests need beside the Python of a virtual environment: `python scripts/fetch_debian.py .venv`.

etcd, Prometheus and promtool, out of Debian's packages, fetched by apt-get with lists of its own: no root is needed,
nothing of the system changes. apt-get checks the signature of the release, which has the SHA-256 of the lists, and they
those of the packages. Debian keeps one version at a time of a release, so there is none to pin: the ones that were
tested are in `PACKAGES`, and another one is named. What is found already is left alone.

Part of `make setup-all`; that one cannot be had is no error: what needs it is skipped, or says so. `METADATA=etcd make
run` brings etcd alone: `fetch_debian.py .venv etcd`.
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
from buckram.launch.etcd_server import find_etcd

RELEASE = "trixie"
"""The first release of Debian that has etcd 3.5."""
MIRROR = "http://deb.debian.org/debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
SECONDS = 300


class Wanted(NamedTuple):
    """The programs of one package; `without` names what is skipped if they are missing."""

    package: str
    programs: tuple[str, ...]
    without: str
    tested: str
    """The version of the package."""


PACKAGES = (
    Wanted("etcd-server", ("etcd",), "metadata on etcd", "3.5.16-4"),
    Wanted("prometheus", ("prometheus",), "tests of dashboards and alert rules", "2.53.3+ds1-2"),
    Wanted("promtool", ("promtool",), "tests of alert rules", "2.53.3+ds1-2"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch_debian.py", description=__doc__)
    parser.add_argument("venv", type=Path)
    names = [one.programs[0] for one in PACKAGES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(names)}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no program {unknown.pop()!r}; known: {', '.join(names)}")
    bin: Path = options.venv.absolute() / "bin"
    chosen = [one for one in PACKAGES if not options.names or one.programs[0] in options.names]
    wanted = [one for one in chosen if not _found(one, bin)]
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
                version = fetch(one, Path(folder), bin)
            except (OSError, subprocess.SubprocessError, StopIteration) as error:
                said = (getattr(error, "stderr", "") or str(error)).strip() or repr(error)
                print(f"  {one.programs[0]:<10} MISSING: {one.without}; {said.splitlines()[-1]}")
            else:
                other = "" if version == one.tested else f"; {one.tested} was tested"
                print(f"  {one.programs[0]:<10} {bin}, {one.package} {version} of Debian {RELEASE}{other}", flush=True)
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


def fetch(one: Wanted, folder: Path, bin: Path) -> str:
    """Return the fetched version. Raises OSError or SubprocessError if it cannot be fetched."""
    options = _apt_options(folder)
    if not (folder / "updated").exists():
        run(["apt-get", *options, "update"], folder)
        (folder / "updated").touch()
    run(["apt-get", *options, "download", one.package], folder)
    unpacked, archive = folder / one.package, str(next(folder.glob(f"{one.package}_*.deb")))
    run(["dpkg-deb", "-x", archive, str(unpacked)], folder)
    for name in one.programs:
        # Under its name only when it is whole; the old one may be running.
        draft = bin / f"{name}.new"
        shutil.copy2(unpacked / "usr" / "bin" / name, draft)
        draft.replace(bin / name)
    return run(["dpkg-deb", "--field", archive, "Version"], folder).strip()


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


def run(command: list[str], folder: Path) -> str:
    return subprocess.run(
        command, cwd=folder, check=True, timeout=SECONDS, capture_output=True, text=True
    ).stdout  # fmt: skip


def mirror() -> str:
    """Return the Debian mirror of this system's sources, else the default one."""
    for path in (SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))):
        if path.is_file():
            found = re.search(r"^(?:URIs:|deb)\s.*?(https?://\S+/debian)/?\s*", path.read_text(errors="replace"), re.M)
            if found:
                return found[1]
    return MIRROR


if __name__ == "__main__":
    raise SystemExit(main())
