"""Limits of the files of a gateway, and the address of its access tokens."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.serve.http.limits import LOGIN_BYTES

CLUSTER_KEY = "BuckramCluster"
"""The id of the cluster in the answer to GETSERVERDEFAULTS, beside what Hadoop's client reads."""
TOKEN_PATH = "/webhdfs/oauth2/token"
SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}
"""Schemes of Hadoop's URLs for a gateway, and the scheme of HTTP behind each."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of one gateway."""

    transfers: int = 128
    """Files and lists that go in or out at once. Each has some ten megabytes in memory at most."""
    stuck_s: float = 600.0
    """A client that reads nothing of a file for this many seconds is disconnected; Hadoop's client then resumes."""
    page: int = 10_000
    """Entries of a directory that are looked up at once, and are of one moment."""
    form_bytes: int = LOGIN_BYTES
    """Maximum bytes of the body of a request for an access token."""


def files_url(url: str) -> str:
    """Return the prefix of the paths of files of a gateway at a URL of http or https: webhdfs://HOST:PORT."""
    scheme, _, rest = url.partition("://")
    return next(f"{name}://{rest}" for name, reached in SCHEMES.items() if reached == scheme)
