"""Looks into a wheel: `python scripts/check_wheel.py [--release] WHEEL...`; exit code 1 with a line for each fault.

--release also refuses what a wheel for others must not lack: the compiled module.
"""

from __future__ import annotations

import re
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

MOST_BYTES = 2_500_000
EXTRAS = {"arrow", "avro", "compression", "connect", "db", "fsspec", "history", "jre", "otel"}
EXTRAS |= {"security", "serve", "spark", "sqlalchemy"}
NEEDED = (
    "buckram/__init__.py",
    "buckram/py.typed",
    "buckram/core/wire/bookkeeper_pb2.pyi",
    "pyspark_buckram/__init__.py",
    "pyspark_buckram_db/__init__.py",
    "buckram/spark/log4j2.properties",
    "buckram/launch/zookeeper_server/log4j2.properties",
)
NOT_FOR_USERS = re.compile(
    r"^(buckram/(sim|chaos)/|tests/|bench/|chaos/|simulator/|scripts/|examples/|javakit/)|\.(c|o|pyc)$"
)
RELATIVE_LINK = re.compile(r"\]\((?!https?://)([^)]+)\)")
RESERVED = re.compile(r"^https?://[^/]*\bexample(\.(com|net|org))?(/|$)")
"""Addresses that are reserved for examples lead nowhere."""


def faults(wheel: Path, *, release: bool = False) -> list[str]:
    """Return the faults of a wheel, one sentence each."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        )
    found = [f"{name} is missing" for name in NEEDED if name not in names]
    found += [f"{name} is not for users" for name in names if NOT_FOR_USERS.search(name)]
    if wheel.stat().st_size > MOST_BYTES:
        found.append(f"it has {wheel.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    found += _metadata_faults(metadata)
    if release and not any(re.fullmatch(r"buckram/core/entries/_hot\..*(so|pyd)", name) for name in names):
        found.append("the compiled module is missing: build with BUCKRAM_REQUIRE_COMPILED=1 to see why")
    return found


def _metadata_faults(metadata: Message) -> list[str]:
    found = [f"the metadata has no {field}" for field in ("Author", "Keywords", "Summary", "License-Expression")
             if not metadata.get(field)]  # fmt: skip
    urls = [value.rpartition(", ")[2] for value in metadata.get_all("Project-URL", [])]
    if not urls:
        found.append("the metadata has no address")
    found += [
        f"{url} is an example address: set [project.urls] in pyproject.toml" for url in urls if RESERVED.match(url)
    ]
    if len(metadata.get_all("Classifier", [])) < 8:
        found.append("the metadata has hardly any classifiers")
    extras = set(metadata.get_all("Provides-Extra", []))
    if extras != EXTRAS:
        found.append(f"its extras are {sorted(extras)}, not {sorted(EXTRAS)}")
    body = metadata.get_payload()
    assert isinstance(body, str)
    if "# Buckram" not in body:
        found.append("the README is not in the metadata")
    return found + [f"the README links to {target}, which no index page has" for target in RELATIVE_LINK.findall(body)]


def main() -> int:
    release, wheels = "--release" in sys.argv[1:], [Path(name) for name in sys.argv[1:] if name != "--release"]
    wrong = [f"{wheel.name}: {fault}" for wheel in wheels for fault in faults(wheel, release=release)]
    print("\n".join(wrong) or f"{len(wheels)} wheels are good")
    return 1 if wrong or not wheels else 0


if __name__ == "__main__":
    raise SystemExit(main())
