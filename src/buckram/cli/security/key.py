"""`buckram key`: files of the keys with which clients encrypt the entries of a namespace."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit, table
from buckram.core.security.encryption import KEY_BYTES, Key, parse_keys
from buckram.errors import ConfigError, InvalidArgument
from buckram.runtime.net.security.certificate_files import check_key_file

_HEAD = "# Keys of Buckram, the one for new ledgers first. Its readers can decrypt what was written with them.\n"


@click.group()
def key() -> None:
    """Make and list keys of namespaces with encrypted entries. See [encryption] in the settings."""


@key.command("create")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def create(file: Path, as_json: bool) -> None:
    """Make a new key and put it first into FILE. The file is made with mode 0600 if it does not exist.

    New ledgers are encrypted with the first key; those below it still decrypt older ledgers. To rotate a key: every
    reader needs the new FILE before a writer has it.

    \b
    Example:
      buckram key create /etc/buckram/keys/shop.keys
      export BUCKRAM_ENCRYPTION_KEYS='/etc/buckram/keys/{namespace}.keys'
    """
    from buckram.runtime.net.security.certificate_authority import write_private

    before = _read(file) if file.exists() else ()
    made = Key.of(secrets.token_bytes(KEY_BYTES))
    lines = [f"{one.secret.hex()}\n" for one in (made, *before)]
    try:
        write_private(file, (_HEAD + "".join(lines)).encode())
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}; choose a file in a folder that exists") from None
    if as_json:
        emit({"id": made.key_id, "file": str(file), "keys": len(before) + 1})
    else:
        click.echo(f"key {made.key_id} is the first of {len(before) + 1} in {file}")


@key.command("list")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@json_option
def list_(file: Path, as_json: bool) -> None:
    """Show the ids of the keys in FILE, in their order; never the keys."""
    rows = [{"id": one.key_id, "use": "read" if place else "write and read"} for place, one in enumerate(_read(file))]
    if as_json:
        emit({"keys": rows})
    else:
        table(("id", "for"), [(row["id"], row["use"]) for row in rows])


def _read(file: Path) -> tuple[Key, ...]:
    check_key_file(str(file))
    try:
        return parse_keys(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}; name a file of keys") from None
