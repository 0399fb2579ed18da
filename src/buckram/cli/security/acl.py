"""`buckram acl`: grants of permissions on namespaces, streams, objects. Who makes them opens the store directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from buckram.cli.security.token import security_store
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, run_async
from buckram.cli.shared.output import emit, table
from buckram.core.security.acl import PERMISSIONS, Acl, Decision, Denial, Grant, check_granted
from buckram.core.security.principal import Principal
from buckram.errors import InvalidArgument, NoSuchNamespace
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.metadata.records.security import SecurityStore


@click.group()
def acl() -> None:
    """Manage who may do what with namespaces, streams and objects.

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
            f"--principal {principal!r}: give its kind, such as token:{principal}, cert:{principal}, "
            f"sasl:{principal}, unix:{principal} or role:{principal}"
        )
    return principal


principal_option = click.option(
    "--principal", required=True, metavar="P", help="Principal: token:S, oidc:S, cert:S, sasl:S or role:R."
)


permission_option = click.option(
    "--permission",
    "text",
    required=True,
    metavar="P,...",
    help=f"Permissions, separated by commas: {', '.join(PERMISSIONS)}.",
)


@acl.command("grant")
@principal_option
@permission_option
@click.argument("namespace")
@cluster_options
def grant(principal: str, text: str, namespace: str, uri: str | None, as_json: bool) -> None:
    """Let a principal or role do more in a namespace. The grant covers all that is in NAMESPACE.

    It may be a pattern such as 'shop-*'. NAMESPACE/STREAM is a single stream or database, and 'shop/o*' a pattern of
    them. NAMESPACE/objects/NAME is a single object, and 'NAMESPACE/objects/PREFIX*' all that begin so: such a grant
    counts at gateways, while a client that uses bookies directly needs NAMESPACE/buckram.objects, which is all objects.

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
            return await _changed(security, "grant", Acl.granting, who, namespace, permissions)

    _show(run_async(main()), who, namespace, as_json)


@acl.command("revoke")
@principal_option
@permission_option
@click.argument("namespace")
@cluster_options
def revoke(principal: str, text: str, namespace: str, uri: str | None, as_json: bool) -> None:
    """Revoke permissions, with the options that granted them."""
    who, permissions = _who(principal), _permissions(text)

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            _check_there((await security.acl()).grants, "grant", who, namespace)
            return await _changed(security, "revoke", Acl.revoking, who, namespace, permissions)

    _show(run_async(main()), who, namespace, as_json)


@acl.command("deny")
@principal_option
@permission_option
@click.argument("where", metavar="WHERE")
@cluster_options
def deny(principal: str, text: str, where: str, uri: str | None, as_json: bool) -> None:
    """Deny permissions to a principal or role, whatever grants them. Administrators are not held to it.

    WHERE is as in `buckram acl grant`: a namespace with all in it, a stream, objects, or a pattern. `admin` denies
    everything. All bookies, gateways and servers of databases have to be of this release.

    \b
    Examples:
      buckram acl deny --principal role:interns --permission read shop/salaries
      buckram acl deny --principal token:ann --permission append,delete 'shop/objects/reports/*'
    """
    who, permissions = _who(principal), _permissions(text)
    check_granted(where)

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            return await _changed(security, "deny", Acl.denying, who, where, permissions)

    _show_denied(run_async(main()), who, where, as_json)


@acl.command("undeny")
@principal_option
@permission_option
@click.argument("where", metavar="WHERE")
@cluster_options
def undeny(principal: str, text: str, where: str, uri: str | None, as_json: bool) -> None:
    """Remove a denial, with the options that made it. What was granted applies again."""
    who, permissions = _who(principal), _permissions(text)

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            _check_there((await security.acl()).denials, "denial", who, where)
            return await _changed(security, "undeny", Acl.undenying, who, where, permissions)

    _show_denied(run_async(main()), who, where, as_json)


@acl.command("list")
@cluster_options
def list_(uri: str | None, as_json: bool) -> None:
    """List all grants and denials."""

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            return await security.acl()

    found = run_async(main())
    if as_json:
        emit({"grants": _rows(found.grants), "denials": _rows(found.denials)})
    else:
        table(
            ("principal", "namespace", "permissions", "rule"),
            [
                (one.who, one.namespaces, ",".join(sorted(one.permissions)), _kind(one))
                for one in (*found.grants, *found.denials)
            ],
        )


@acl.command("check")
@principal_option
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role that the principal has; repeatable.")
@permission_option
@click.argument("namespace")
@cluster_options
def check(principal: str, roles: tuple[str, ...], text: str, namespace: str, uri: str | None, as_json: bool) -> None:
    """Say whether a principal may do something, and why. Exit code 1 if not."""
    who, permissions = _who(principal), _permissions(text)
    asking = Principal(who, roles, "admin" in roles)

    async def main() -> Acl:
        async with security_store(uri) as (security, _):
            return await security.acl()

    found = run_async(main())
    allowed = found.allowed(asking, namespace)
    missing = [one for one in permissions if one not in allowed]
    decided = {one: found.decision(asking, namespace, one) for one in permissions}
    if as_json:
        rows = [_decided(one, decision, asking) for one, decision in decided.items()]
        emit({"allowed": not missing, "permissions": sorted(allowed), "decided_by": rows})
    else:
        click.echo("allowed" if not missing else f"not allowed: {', '.join(missing)}")
        for one, decision in decided.items():
            click.echo(f"  {one}: {_told(decision, asking)}")
    if missing:
        raise click.exceptions.Exit(Exit.FAILED)


async def _changed(
    security: SecurityStore,
    action: str,
    change: Callable[[Acl, str, str, list[str]], Acl],
    who: str,
    where: str,
    permissions: list[str],
) -> Acl:
    """Change a rule, and leave a note of it for the audit trail."""
    changed: Acl = await security.change_acl(lambda acl: change(acl, who, where, permissions))
    await leave_note(security.store, action, who, where, ",".join(permissions))
    return changed


def _check_there(rules: Sequence[Grant], kind: str, who: str, where: str) -> None:
    if not any((one.who, one.namespaces) == (who, where) for one in rules):
        raise InvalidArgument(f"{who} has no {kind} on {where}; `buckram acl list` shows what there is")


def _kind(rule: Grant) -> str:
    return "denial" if isinstance(rule, Denial) else "grant"


def _rows(rules: Sequence[Grant]) -> list[dict[str, object]]:
    return [
        {"principal": one.who, "namespace": one.namespaces, "permissions": sorted(one.permissions)} for one in rules
    ]


def _decided(permission: str, decision: Decision, asking: Principal) -> dict[str, object]:
    rule = decision.rule
    if rule is None:
        kind = "administrator" if asking.admin else "nothing"
        return {"permission": permission, "rule": kind, "principal": None, "namespace": None}
    return {"permission": permission, "rule": _kind(rule), "principal": rule.who, "namespace": rule.namespaces}


def _told(decision: Decision, asking: Principal) -> str:
    rule = decision.rule
    if rule is None:
        return "administrators may do everything" if asking.admin else "no grant allows it"
    said = ", ".join(sorted(rule.permissions))
    return f"{_kind(rule)} of {said} on {rule.namespaces} to {rule.who}"


def _show_denied(acl: Acl, who: str, where: str, as_json: bool) -> None:
    found = {one for rule in acl.denials if (rule.who, rule.namespaces) == (who, where) for one in rule.permissions}
    if as_json:
        emit({"principal": who, "namespace": where, "denied": sorted(found)})
    else:
        click.echo(f"{who} on {where}: {'denied ' + ', '.join(sorted(found)) if found else 'nothing is denied'}")


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
