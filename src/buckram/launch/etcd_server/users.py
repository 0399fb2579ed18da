"""Users of an etcd server that was started here. Once they are set up, every login needs a password.

Not here: how clients log in (`metadata/etcd/client.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from buckram.errors import EtcdFailed
from buckram.launch.etcd_server.server import EtcdServer

USER = "root"
"""Name of the user; etcd requires passwords only if there is a user of this name."""
_THERE = "already exists"
_NOT_ASKED = "authentication is not enabled"


def require_password(server: EtcdServer, password: str) -> None:
    """Make the server require a password of every client, and create USER with this one. Idempotent. Raises
    EtcdFailed."""
    refused = _refusal(server, "auth/authenticate", {"name": USER, "password": password})
    if _NOT_ASKED in refused:
        _only_ours(server)
        for path, body in (
            ("auth/user/add", {"name": USER, "password": password}),
            ("auth/role/add", {"name": USER}),
            ("auth/user/grant", {"user": USER, "role": USER}),
            ("auth/enable", {}),
        ):
            refused = _refusal(server, path, body)
            if refused and _THERE not in refused:
                raise EtcdFailed(f"{server.path}: etcd refuses to have users: {refused}")
        refused = _refusal(server, "auth/authenticate", {"name": USER, "password": password})
    if refused:
        raise EtcdFailed(
            f"{server.path}: etcd does not let {USER} in with the password of this directory: {refused}; put the file "
            "back that belongs to it"
        )


def _only_ours(server: EtcdServer) -> None:
    """Nobody else may have made themselves a user while anybody could."""
    users = server.ask("auth/user/list", {}).get("users", [])
    others = [one for one in users if one != USER] if isinstance(users, list) else [users]
    if others:
        raise EtcdFailed(f"{server.path}: etcd has users that Buckram did not make: {others}; delete them first")


def _refusal(server: EtcdServer, path: str, body: Mapping[str, object]) -> str:
    """Return why a request was refused; "" if it was not."""
    answer = server.ask(path, body)
    if not answer:
        return f"etcd does not answer; see {server.log}"
    return str(answer.get("error") or answer.get("message") or "")
