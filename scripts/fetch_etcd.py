"""Put an etcd server beside the Python of a virtual environment: `python scripts/fetch_etcd.py .venv`.

Out of Debian's package etcd-server, fetched and checked by apt-get with lists of its own: no root is needed, nothing of
the system changes. An etcd 3.5 or later that is found already is left alone. Part of `make setup-all`; that there is
none is no error: what needs it is skipped, or says so.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from buckram.errors import ConfigError
from buckram.etcd_server import find_etcd

PACKAGE, RELEASE = "etcd-server", "trixie"
"""The first release of Debian that has 3.5."""
MIRROR = "http://deb.debian.org/debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
SECONDS = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch_etcd.py", description=__doc__)
    parser.add_argument("venv", type=Path)
    target: Path = parser.parse_args().venv.absolute() / "bin" / "etcd"
    try:
        print(f"  etcd   {find_etcd()}", flush=True)
    except ConfigError:
        pass
    else:
        return 0
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    missing += [] if KEYS.exists() else [str(KEYS)]
    if missing:
        print(
            f"  etcd   MISSING: tests of metadata on etcd; install etcd 3.5 or later (no {missing[0]} to fetch it with)"
        )
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            fetch(Path(folder), target)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            print(f"  etcd   MISSING: tests of metadata on etcd; {said.strip().splitlines()[-1]}")
            return 0
    print(f"  etcd   {target}, from {PACKAGE} of Debian {RELEASE}", flush=True)
    return 0


def fetch(folder: Path, target: Path) -> None:
    """OSError or SubprocessError when it cannot be had."""
    for name in ("lists/partial", "cache/archives/partial", "unpacked"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror()} {RELEASE} main\n")
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run(["apt-get", *options, "update"], folder)
    run(["apt-get", *options, "download", PACKAGE], folder)
    run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), "unpacked"], folder)
    # Under its name only when it is whole; the old one may be running.
    draft = target.with_name("etcd.new")
    shutil.copy2(folder / "unpacked" / "usr" / "bin" / "etcd", draft)
    draft.replace(target)


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
