"""`buckram token`: make, show, verify, list and revoke tokens. Who makes them opens the metadata store directly."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import click

from buckram.cli.shared import values
from buckram.cli.shared.options import cluster_options, cluster_uri, json_option, run_async
from buckram.cli.shared.output import emit, table
from buckram.core.security.tokens import need_extra
from buckram.errors import InvalidArgument
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.metadata.records.security import SecurityStore

DEFAULT_DAYS = "30d"


@click.group()
def token() -> None:
    """Make, list and revoke tokens, by which bookies know clients."""
    need_extra("buckram token")


@contextlib.asynccontextmanager
async def security_store(uri: str | None) -> AsyncIterator[tuple[SecurityStore, str]]:
    """Yield the security keys of the cluster, opened directly, and the cluster's id. Raises InvalidArgument for
    buckram:// URIs."""
    from buckram.metadata.service.uri import parse_service
    from buckram.metadata.uri import open_store

    where = cluster_uri(uri)
    if parse_service(where) is not None:
        raise InvalidArgument(
            f"{where}: tokens and grants are made by administrators, with the URI of the metadata store itself"
        )
    store = await open_store(where)
    try:
        yield SecurityStore(store), await store.instance_id()
    finally:
        await store.close()


@token.command("create")
@click.option("--subject", required=True, metavar="S", help="Principal that the token is for; grants name it token:S.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Role, repeatable; `admin` may do everything.")
@click.option(
    "--expires", default=DEFAULT_DAYS, show_default=True, metavar="TIME", help="Time for which the token is valid."
)
@click.option("--new-key", is_flag=True, help="Sign with a new key from now on; tokens of older keys stay valid.")
@cluster_options
def create(subject: str, roles: tuple[str, ...], expires: str, new_key: bool, uri: str | None, as_json: bool) -> None:
    """Make a token and print it. It is not stored: make another one if it is lost.

    \b
    Example:
      buckram token create --subject alice --expires 30d
    """
    lasts = values.duration("--expires", expires)
    if lasts <= 0:
        raise InvalidArgument(f"--expires {expires}: needs a time such as 30d")

    async def main() -> tuple[Any, str]:
        async with security_store(uri) as (security, _):
            now = time.time()
            made = await security.create_token(subject, roles, now, now + lasts, new_key=new_key)
            await leave_note(security.store, "token", f"token {made[0].token_id}", detail=f"made for {subject}")
            return made

    made, text = run_async(main())
    if as_json:
        emit({"token": text, "id": made.token_id, "subject": subject, "expires_s": round(made.expires_s)})
    else:
        click.echo(text)


@token.command("show")
@click.argument("text", metavar="TOKEN")
@json_option
def show(text: str, as_json: bool) -> None:
    """Print the contents of a token, without verifying it. TOKEN - is read from standard input."""
    import jwt

    try:
        said = jwt.decode(_given(text), options={"verify_signature": False})
    except jwt.InvalidTokenError as error:
        raise InvalidArgument(f"this is no token: {error}") from None
    _print({name: said.get(key) for name, key in _NAMES.items()}, as_json)


_NAMES = {"id": "jti", "subject": "sub", "roles": "roles", "cluster": "aud", "issued_s": "iat", "expires_s": "exp"}


@token.command("verify")
@click.argument("text", metavar="TOKEN")
@cluster_options
def verify(text: str, uri: str | None, as_json: bool) -> None:
    """Check whether a token is valid in this cluster now. Exit code 5 if it is not. TOKEN - reads standard input."""
    from buckram.core.security.tokens import Token, TokenRefused
    from buckram.core.security.tokens import verify as verified
    from buckram.errors import Unauthorized

    async def main() -> Token:
        async with security_store(uri) as (security, cluster):
            state = await security.state()
            try:
                return verified(_given(text), state.keys, cluster, time.time(), state.revoked)
            except TokenRefused as error:
                raise Unauthorized(str(error)) from None

    found = run_async(main())
    _print(
        {"id": found.token_id, "subject": found.subject, "roles": list(found.roles), "expires_s": found.expires_s},
        as_json,
    )


@token.command("list")
@cluster_options
def list_(uri: str | None, as_json: bool) -> None:
    """List all tokens, including revoked ones."""

    async def main() -> list[dict[str, Any]]:
        async with security_store(uri) as (security, _):
            return sorted(await security.tokens(), key=lambda one: one["issued_s"])

    found = run_async(main())
    if as_json:
        emit({"tokens": found})
        return
    rows = [
        (one["id"], one["subject"], " ".join(one["roles"]), time_text(one["expires_s"]), state_text(one, "revoked"))
        for one in found
    ]
    table(("id", "subject", "roles", "expires", "state"), rows)


@token.command("revoke")
@click.argument("token_id", required=False, metavar="ID")
@click.option("--subject", metavar="S", help="Revoke all tokens that were made for S until now.")
@cluster_options
def revoke(token_id: str | None, subject: str | None, uri: str | None, as_json: bool) -> None:
    """Take a token back, by its id, or all of a subject. Open connections end within seconds.

    \b
    Example:
      buckram token revoke --subject alice
    """
    if (token_id is None) == (subject is None):
        raise InvalidArgument("name a token's ID, or --subject S, and not both")

    async def main() -> None:
        async with security_store(uri) as (security, _):
            if token_id is not None:
                await security.revoke_token(token_id)
            elif subject is not None:
                await security.revoke_subject(subject, time.time())
            await leave_note(security.store, "token", f"token {token_id or f'of {subject}'}", detail="revoked")

    run_async(main())
    if as_json:
        emit({"revoked": token_id or subject})
    else:
        click.echo(f"revoked: {token_id or f'all tokens of {subject}'}")


def _given(text: str) -> str:
    return sys.stdin.readline().strip() if text == "-" else text.strip()


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    for name, value in found.items():
        shown = time_text(value) if name.endswith("_s") and value is not None else value
        click.echo(f"{name.removesuffix('_s')}: {shown}")


def time_text(seconds: float) -> str:
    """Return a time in seconds since 1970, for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def state_text(one: dict[str, Any], ended: str) -> str:
    """Return the state of a token or a certificate; `ended` is the key that marks it as taken back."""
    if one[ended]:
        return ended
    return "expired" if one["expires_s"] <= time.time() else "counts"
