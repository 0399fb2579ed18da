"""The directory of `buckram up`: how many bookies, their ports, and which kind of metadata store. Starts nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from buckram.errors import ConfigError, CorruptStore
from buckram.metadata.default import DESCRIPTION

LOCK = "up.lock"
GATEWAY_URL = "gateway.url"
"""The address of the gateway, a line of text, for as long as `up` runs."""
FORMATS = {"sqlite": 1, "zookeeper": 2, "etcd": 3}
"""A number for each kind of metadata, so that a Buckram that does not know one puts no database beside it."""
SECURED = 100
"""Added to it where bookies ask who their clients are: a Buckram that does not know that opens none of them to all."""
ON_DISKS = 10
"""Added to it where bookies are on disks of their own: a Buckram that does not know that starts none elsewhere."""

_OURS = re.compile(
    r"up\.lock|gateway\.url|cluster\.json(\.new)?|metadata\.db.*|bookie-\d+|zookeeper|etcd|security|lost\+found"
)
"""Names that may be in the directory of a new cluster: leftovers of an interrupted first start, and lost+found."""


GATEWAY = 0
"""In the place of a bookie's number: the gateway, which has a port as well."""


@dataclass
class ClusterDirectory:
    """Description of a cluster's directory, stored as cluster.json. `ports`: bookie number -> port; only bookies that
    served at least once are in it.

    `kind` is one of FORMATS; `metadata` the URI of the directory's own ZooKeeper or etcd, empty for the database.
    `disks`: directories in which new bookies are made in rotation; `places`: bookie number -> its directory, for those
    that are not below `root`. `secure`: bookies ask who their clients are.
    """

    root: Path
    bookies: int = 0
    kind: str = "sqlite"
    metadata: str = ""
    ports: dict[int, int] = field(default_factory=dict)
    disks: list[Path] = field(default_factory=list)
    secure: bool = False
    places: dict[int, Path] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> ClusterDirectory:
        """Read the description; empty if there is none yet. Raises CorruptStore if this version did not write it."""
        path = root / DESCRIPTION
        try:
            found = json.loads(path.read_bytes())
            secure, version = divmod(found["format_version"], SECURED)
            numbers = {number: name for name, number in FORMATS.items()}
            kind = numbers.get(version, numbers.get(version - ON_DISKS))
            if kind is None or secure > 1:
                number = found["format_version"]
                raise CorruptStore(f"{path}: format version {number}; another version of buckram made it, use that")
            ports = {int(number): int(port) for number, port in found["ports"].items() if port}
            disks = [Path(str(one)) for one in found.get("disks", [])]
            places = {int(number): Path(str(one)) for number, one in found.get("places", {}).items()}
            metadata, bookies = str(found.get("metadata", "")), int(found["bookies"])
            return cls(root, bookies, kind, metadata, ports, disks, bool(secure), places)
        except FileNotFoundError:
            return cls(root)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptStore(
                f"{path}: not a description of a cluster ({type(error).__name__}: {error}); put a good copy back"
            ) from None

    @property
    def made(self) -> bool:
        return self.bookies > 0

    def check_is_ours(self) -> None:
        """Raise ConfigError for a directory without a cluster that holds foreign files."""
        foreign = [] if self.made else sorted(one.name for one in self.root.iterdir() if not _OURS.fullmatch(one.name))
        if foreign:
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise ConfigError(
                f"{self.root} is no cluster's directory and holds other files ({', '.join(foreign[:3])}{more}): "
                "choose an empty or a new one with --data"
            )

    def write(self) -> None:
        said: dict[str, object] = {"format_version": FORMATS[self.kind], "bookies": self.bookies, "ports": self.ports}
        if self.metadata:
            said["metadata"] = self.metadata
        if self.disks or self.places:
            said["format_version"] = FORMATS[self.kind] + ON_DISKS
            said["disks"] = [str(one) for one in self.disks]
            said["places"] = {number: str(one) for number, one in self.places.items()}
        if self.secure:
            said["format_version"] = SECURED + int(str(said["format_version"]))
        draft = self.root / (DESCRIPTION + ".new")
        draft.write_text(json.dumps(said))
        draft.replace(self.root / DESCRIPTION)

    def bookie(self, number: int) -> Path:
        """Return the directory of a bookie, which it keeps whatever disks are named later."""
        return self.places.get(number, self.root / f"bookie-{number}")

    def bookie_directories(self) -> list[Path]:
        """Return the directories of all bookies, including those on disk that a lost description no longer counts."""
        there = [self.bookie(number) for number in range(1, self.bookies + 1)]
        for above in (self.root, *self.disks):
            there += sorted(above.glob("bookie-*/"))
        return list(dict.fromkeys(there))

    def place(self, count: int) -> None:
        """Give each new bookie, up to number `count`, its directory: on one disk after the other."""
        for number in range(self.bookies + 1, count + 1) if self.disks else ():
            self.places.setdefault(number, self.disks[(number - 1) % len(self.disks)] / f"bookie-{number}")

    def missing_disk(self, number: int) -> Path | None:
        """Return the disk of a bookie if it is not there: not mounted, or no directory."""
        place = self.places.get(number)
        return None if place is None or place.parent.is_dir() else place.parent

    def lost(self, number: int) -> bool:
        """Return whether this bookie served before and its data are gone."""
        path = self.bookie(number)
        return number in self.ports and not (path.is_dir() and any(path.iterdir()))

    def free_port(self, number: int) -> int:
        """Return the port that the bookie had, 0 when it had none or another program has it now."""
        port = self.ports.get(number, 0)
        return port if port and _is_free(port) else 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Keeps a second `buckram up` off the directory, which is made if it is missing."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{root}: {_who_runs(root)}; use it, stop it, or choose another --data") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _who_runs(root: Path) -> str:
    """Describe the running `buckram up` that holds the lock: its process and its gateway's address, where known."""
    found = ["", ""]
    for place, (name, largest) in enumerate(((LOCK, 20), (GATEWAY_URL, 300))):
        with contextlib.suppress(OSError, ValueError):
            found[place] = (root / name).read_text("ascii")[:largest].strip()
    pid, url = found
    process = f" (process {pid})" if pid.isdigit() else ""
    return f"a `buckram up`{process} runs this cluster" + (f", with its gateway at {url}" if url else "")
