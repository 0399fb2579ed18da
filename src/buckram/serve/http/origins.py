"""Requests that a page in a browser sends to a server which that browser can reach, and the page's author cannot.

A browser says in `Origin` which page sends a request, and in `Host` which name it looked the server up by; that name
may be the author's own, which points to this machine (DNS rebinding). So pages of other origins are refused, and names
that nobody gave to this server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import Request

from buckram.addresses import read_address
from buckram.serve.http.problems import HttpProblem, has_header, header


class Origins:
    """`hosts`: names by which clients reach the server, with all names below them, beside addresses, localhost and this
    machine's own name. `pages`: origins of pages that may use it, such as https://admin.example.org.
    """

    def __init__(self, hosts: Iterable[str] = (), pages: Iterable[str] = ()) -> None:
        own = {"localhost", socket.gethostname().lower()}
        self._hosts = own | {host.lower().rstrip(".") for host in hosts if host}
        self._pages = {page.lower().rstrip("/") for page in pages}

    def check(self, request: Request) -> None:
        """Raises HttpProblem 403."""
        host = header(request, b"host").lower()
        name = _name(host)
        if host and not self._is_known(name):
            raise HttpProblem(
                403,
                "UNKNOWN_HOST",
                f"this server does not know the host name {name[:100]!r}: use its address, or start it with "
                "--allow-host for that name",
                value=name[:100],
            )
        if not has_header(request, b"origin"):
            return
        origin = header(request, b"origin")
        page = origin.lower().rstrip("/")
        if page not in self._pages and (page == "null" or urlsplit(page).netloc != host):
            raise HttpProblem(
                403,
                "FOREIGN_ORIGIN",
                f"pages of {origin[:100]!r} may not use this server: start it with --allow-origin for that origin",
                value=origin[:100],
            )

    def _is_known(self, name: str) -> bool:
        return name in self._hosts or _is_address(name) or any(name.endswith(f".{host}") for host in self._hosts)


@lru_cache(1024)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """The host without its port; what is no address stays as it is, and nobody's name."""
    found = read_address(host)
    return host if found is None else found.host.rstrip(".")
