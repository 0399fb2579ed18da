"""`buckram context`: add, use, list, show and remove. What a context does: cli/shared/context_file.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from buckram.cli.shared.context_file import FILES, VARIABLE, Contexts, check_name
from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit, remark, table
from buckram.errors import BuckramError, InvalidArgument
from buckram.metadata.default import VARIABLE as METADATA

_MASKED = "********"
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def context() -> None:
    """Name clusters, and choose the one that commands use. The file is $XDG_CONFIG_HOME/buckram/contexts.json."""


@context.command("add")
@click.argument("name")
@click.option("--metadata", "uri", required=True, metavar="URI", help="The cluster.")
@click.option("--token", metavar="TOKEN", help="Token for bookies; --token-file keeps it out of `ps`.")
@click.option("--token-file", type=FILE, metavar="FILE", help="File with the token, read by each command.")
@click.option("--ca", type=FILE, metavar="FILE", help="PEM file: the authorities that sign the bookies. Turns TLS on.")
@click.option("--certificate", type=FILE, metavar="FILE", help="PEM file: the certificate to show.")
@click.option("--key", type=FILE, metavar="FILE", help="PEM file: its private key.")
@click.option("--use", "at_once", is_flag=True, help="Make it the current one, as the first one always is.")
@json_option
def add(name: str, uri: str, at_once: bool, as_json: bool, **given: Any) -> None:
    """Name a cluster, or give a name to another cluster. Nothing of the old one stays.

    \b
    Example:
      buckram context add prod --metadata buckram://bookie-1:3181 --token-file prod.token --ca prod-ca.pem
    """
    from buckram.metadata.uri import parse

    check_name(name)
    parse(uri)
    if given["token"] is not None and given["token_file"] is not None:
        raise InvalidArgument("give one of --token and --token-file")
    if (given["certificate"] is None) is not (given["key"] is None):
        raise InvalidArgument("--certificate and --key go together: give both, or none")
    values = {"metadata": uri}
    for key, value in given.items():
        if value is not None:
            values[key] = _file(key, value) if key in FILES else _token(value)
    file = Contexts.read()
    with file.changed():
        replaced = file.known.pop(name, None) is not None
        file.known[name] = values
        if at_once or file.current is None:
            file.current = name
    if as_json:
        emit({**_shown(file, name), "replaced": replaced})
    else:
        print(f"context {name} {'names another cluster' if replaced else 'is added'}{_if_current(file, name)}")


def _file(key: str, path: Path) -> str:
    option = f"--{key.replace('_', '-')} {path}"
    try:
        body = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{option}: {error.strerror}; name a file that can be read") from None
    if key in ("ca", "certificate") and b"-----BEGIN" not in body:
        raise InvalidArgument(f"{option}: has no certificate; name a PEM file")
    return os.path.abspath(path)


def _token(text: str) -> str:
    if not text or not text.isascii() or not text.isprintable():
        raise InvalidArgument("--token: not a token; `buckram token create` prints one")
    return text


@context.command("use")
@click.argument("name", required=False)
@click.option("--none", "nothing", is_flag=True, help="Make no context the current one.")
@json_option
def use(name: str | None, nothing: bool, as_json: bool) -> None:
    """Make a context the current one. Commands mean its cluster where nothing else names one.

    \b
    Example:
      buckram context use prod
    """
    if (name is None) is not nothing:
        raise InvalidArgument("give a NAME, or --none")
    file = Contexts.read()
    if name is not None:
        file.of(name)
    with file.changed():
        file.current = name
    if as_json:
        emit({"current": name})
    else:
        print("no context is the current one" if name is None else f"context {name} is the current one")
    _warn(name)


def _warn(name: str | None) -> None:
    """Warn about environment variables that override the current context."""
    for variable in (VARIABLE, METADATA):
        if os.environ.get(variable) and (variable, os.environ[variable]) != (VARIABLE, name):
            remark(f"{variable} is set, and takes precedence over the current context")


@context.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the contexts of this user; a star marks the current one. Tokens are not shown.

    \b
    Example:
      buckram context list
    """
    file = Contexts.read()
    rows = [_shown(file, name) for name in sorted(file.known)]
    if as_json:
        emit({"current": file.current, "contexts": rows, "file": str(file.path)})
        return
    shown = [
        ("*" if row["current"] else "", row["context"], row["metadata"], row["token"] or row["token_file"], row["ca"])
        for row in rows
    ]
    table(("", "NAME", "METADATA", "TOKEN", "CA"), [["" if cell is None else cell for cell in row] for row in shown])


@context.command("show")
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show one context, by default the one in use. Its token is not shown.

    \b
    Example:
      buckram context show prod
    """
    file = Contexts.read()
    name = name or os.environ.get(VARIABLE) or file.current
    if name is None:
        raise InvalidArgument("no context is in use; `buckram context list` shows those that are known")
    row = _shown(file, name)
    if as_json:
        emit(row)
        return
    print(f"context {name}{_if_current(file, name)}")
    for key, value in row.items():
        if value is not None and key not in ("context", "current"):
            print(f"  {key} = {value}")


@context.command("remove")
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Forget a context. The cluster and the files that it names stay.

    \b
    Example:
      buckram context remove old
    """
    file = Contexts.read()
    file.of(name)
    with file.changed():
        del file.known[name]
        if file.current == name:
            file.current = None
    if as_json:
        emit({"context": name, "removed": True, "current": file.current})
    else:
        print(f"context {name} is removed" + ("" if file.current else "; no context is the current one"))


def _if_current(file: Contexts, name: str) -> str:
    return ", the current one" if file.current == name else ""


def _shown(file: Contexts, name: str) -> dict[str, Any]:
    values = file.of(name)
    masked = _MASKED if "token" in values else None
    rest = {key: values.get(key) for key in FILES}
    return {
        "context": name,
        "current": name == file.current,
        "metadata": _without_password(values["metadata"]),
        "token": masked,
        **rest,
    }


def _without_password(uri: str) -> str:
    from buckram.metadata.uri import parse

    try:
        return str(parse(uri))
    except BuckramError:
        return uri
