"""`buckram acl`: grants of permissions on namespaces, streams, objects. Who makes them opens the store directly."""

from __future__ import annotations

import click

from buckram.cli.exits import Exit
from buckram.cli.options import json_option, metadata_option, run_async
from buckram.cli.output import emit, table
from buckram.cli.token import security_store
from buckram.core.security.acl import PERMISSIONS, Acl, check_granted
from buckram.core.security.principal import Principal
from buckram.errors import InvalidArgument, NoSuchNamespace
from buckram.metadata.audit_notes import leave_note
from buckram.metadata.security import SecurityStore


@click.group()
def acl() -> None:
    """Who may do what with namespaces, streams and objects.

    Grants count once bookies have `[auth] authorisation = on`.
    """


def _permissions(text: str) -> list[str]:
    found = [one.strip() for one in text.split(",") if one.strip()]
    unknown = [one for one in found if one not in PERMISSIONS]
    if unknown or not found:
        raise InvalidArgument(f"--permission {text!r}: needs some of {', '.join(PERMISSIONS)}, with commas between")
    return found


def _who(principal: str) -> str:
    if ":" not in principal:
        raise InvalidArgument(
            f"--principal {principal!r}: say how it is known, such as token:{principal}, cert:{principal}, "
            f"sasl:{principal}, unix:{principal} or role:{principal}"
        )
    return principal


principal_option = click.option("--principal", required=True, metavar="P", help="token:S, cert:S, sasl:S or role:R.")


permission_option = click.option(
    "--permission", "text", required=True, metavar="P,...", help=f"Some of {', '.join(PERMISSIONS)}."
)


@acl.command("grant")
@principal_option
@permission_option
@click.argument("namespace")
@metadata_option
@json_option
def grant(principal: str, text: str, namespace: str, uri: str | None, as_json: bool) -> None:
    """Let a principal or role do more in a namespace. It counts for all that is in NAMESPACE.

    It may be a pattern such as 'shop-*'. NAMESPACE/STREAM is a single stream or database, and 'shop/o*' a pattern of
    them. NAMESPACE/objects/NAME is a single object, and 'NAMESPACE/objects/PREFIX*' all that begin so: such a grant
    counts at gateways, while whoever uses bookies directly needs NAMESPACE/buckram.objects, which is all objects.

    \b
    Examples:
      buckram acl grant --principal token:alice --permission read,append shop
      buckram acl grant --principal token:bob --permission read shop/main
      buckram acl grant --principal token:ann --permission read 'shop/objects/reports/*'
    """
    who, permissions = _who(principal), _permissions(text)
    check_granted(namespace)

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            space = namespace.partition("/")[0]
            if not any(letter in space for letter in "*?["):
                await _require(security, space)
            changed = await security.change_acl(lambda acl: acl.granting(who, namespace, permissions))
            await leave_note(security.store, "grant", who, namespace, ",".join(permissions))
            return changed

    _show(run_async(main()), who, namespace, as_json)


@acl.command("revoke")
@principal_option
@permission_option
@click.argument("namespace")
@metadata_option
@json_option
def revoke(principal: str, text: str, namespace: str, uri: str | None, as_json: bool) -> None:
    """Take permissions back, by the words that granted them."""
    who, permissions = _who(principal), _permissions(text)

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            present = await security.acl()
            if not any((one.who, one.namespaces) == (who, namespace) for one in present.grants):
                raise InvalidArgument(f"{who} has no grant on {namespace}; `buckram acl list` shows what there is")
            changed = await security.change_acl(lambda acl: acl.revoking(who, namespace, permissions))
            await leave_note(security.store, "revoke", who, namespace, ",".join(permissions))
            return changed

    _show(run_async(main()), who, namespace, as_json)


@acl.command("list")
@metadata_option
@json_option
def list_(uri: str | None, as_json: bool) -> None:
    """List all grants."""

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            return await security.acl()

    grants = run_async(main()).grants
    if as_json:
        rows = [{"principal": g.who, "namespace": g.namespaces, "permissions": sorted(g.permissions)} for g in grants]
        emit({"grants": rows})
    else:
        table(
            ("principal", "namespace", "permissions"),
            [(g.who, g.namespaces, ",".join(sorted(g.permissions))) for g in grants],
        )


@acl.command("check")
@principal_option
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role that the principal has; repeatable.")
@permission_option
@click.argument("namespace")
@metadata_option
@json_option
def check(principal: str, roles: tuple[str, ...], text: str, namespace: str, uri: str | None, as_json: bool) -> None:
    """Say whether a principal may do something; exit code 1 if not."""
    who, permissions = _who(principal), _permissions(text)

    async def main() -> frozenset[str]:
        async with security_store(uri) as (security, _):
            return (await security.acl()).allowed(Principal(who, roles, "admin" in roles), namespace)

    allowed = run_async(main())
    missing = [one for one in permissions if one not in allowed]
    if as_json:
        emit({"allowed": not missing, "permissions": sorted(allowed)})
    else:
        click.echo("allowed" if not missing else f"not allowed: {', '.join(missing)}")
    if missing:
        raise click.exceptions.Exit(Exit.FAILED)


async def _require(security: SecurityStore, namespace: str) -> None:
    if not await security.has_namespace(namespace):
        raise NoSuchNamespace(namespace)


def _show(acl: Acl, who: str, namespace: str, as_json: bool) -> None:
    found = [one for one in acl.grants if one.who == who and (one.namespaces == namespace or one.covers(namespace))]
    permissions = sorted({permission for one in found for permission in one.permissions})
    if as_json:
        emit({"principal": who, "namespace": namespace, "permissions": permissions})
    else:
        click.echo(f"{who} on {namespace}: {', '.join(permissions) or 'nothing'}")
