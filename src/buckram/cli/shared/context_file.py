"""Contexts: named clusters of this machine, each with the credentials and authorities of its clients. One file has
them.

They apply to the command line only; `connect()` does not read them. The one in use is: `--context`, else
BUCKRAM_CONTEXT, else the current one; the last two only where neither `--metadata` nor BUCKRAM_METADATA names one. A
context is a whole: with `--context` no variable of the environment says where the cluster is, who this is or who is
trusted, so that the token of one cluster is never shown to another.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from buckram.metadata.default import DATA_DIR, default_uri
from buckram.metadata.default import VARIABLE as METADATA

F = TypeVar("F", bound=Callable[..., Any])
VARIABLE = "BUCKRAM_CONTEXT"
VERSION = 1
FIELDS = {
    "metadata": METADATA,
    "token": "BUCKRAM_TOKEN",
    "token_file": "BUCKRAM_AUTH_TOKEN_FILE",
    "ca": "BUCKRAM_CA",
    "certificate": "BUCKRAM_TLS_CERTIFICATE",
    "key": "BUCKRAM_TLS_KEY",
}
"""Fields of a context, and the environment variable with the same meaning."""
FILES = ("token_file", "ca", "certificate", "key")
_RIVALS = {
    "token": ("BUCKRAM_AUTH_TOKEN_FILE", "BUCKRAM_AUTH_SASL_USER"),
    "token_file": ("BUCKRAM_TOKEN", "BUCKRAM_AUTH_SASL_USER"),
    "ca": ("BUCKRAM_TLS_CA",),
    "certificate": ("BUCKRAM_TLS_KEY",),
    "key": ("BUCKRAM_TLS_CERTIFICATE",),
}
"""Variables that set the same value in another way."""
SAID = {*FIELDS.values(), *(name for rivals in _RIVALS.values() for name in rivals), "BUCKRAM_AUTH_SASL_PASSWORD_FILE"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass
class ChosenContext:
    """The context of one run of the command line, and how the environment was before it."""

    asked: str | None = None
    """Value of `--context`; None if it was not given."""
    name: str | None = None
    """The one in use."""
    as_json: bool = False
    """Standard error is for JSON alone: there are no remarks."""
    _before: dict[str, str] | None = field(default=None, repr=False)

    def apply(self, name: str, values: Mapping[str, str], *, whole: bool) -> None:
        """Set the environment variables of the context, except those that are set already. `whole`: remove all of them
        first, so that only the context applies."""
        if self._before is None:
            self._before = dict(os.environ)
        if whole:
            for variable in SAID:
                os.environ.pop(variable, None)
        given = {variable for variable in SAID if os.environ.get(variable)}
        for key, value in values.items():
            if not given & {FIELDS[key], *_RIVALS.get(key, ())}:
                os.environ[FIELDS[key]] = value
        self.name = name

    def restore(self) -> None:
        """Restore the earlier environment."""
        if self._before is not None:
            os.environ.clear()
            os.environ.update(self._before)
            self._before = None


def context_in_use() -> str | None:
    """Return the name of the context that chose the cluster of the command that is running."""
    context = click.get_current_context(silent=True)
    chosen = context.find_object(ChosenContext) if context is not None else None
    return chosen.name if chosen is not None else None


def context_option(command: F) -> F:
    """`--context NAME`, before a noun or among the options of what works with a cluster."""
    return click.option(
        "--context",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_asked,
        help=f"The cluster that `buckram context add` gave this name; default {VARIABLE}, else the current one.",
    )(command)


def _asked(context: click.Context, _: click.Parameter, name: str | None) -> None:
    chosen = context.find_object(ChosenContext)
    if name is not None and chosen is not None:
        chosen.asked = name


def cluster_of_context(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Return the URI by option, environment or context; None: look beside `buckram up`. It is the callback of
    `--metadata`."""
    from click.core import ParameterSource

    chosen = context.find_object(ChosenContext) or ChosenContext()
    source = context.get_parameter_source(parameter.name or "")
    if given and source is ParameterSource.COMMANDLINE:
        if chosen.asked is not None:
            raise click.UsageError(
                f"--context {chosen.asked} and {parameter.opts[0]} {given} both name a cluster: leave out one of them",
                context,
            )
        return given
    if given and chosen.asked is None:
        return given
    if chosen.asked is None and context.resilient_parsing:
        return given
    file = Contexts.read()
    name = chosen.asked or os.environ.get(VARIABLE) or file.current
    if not name:
        return given
    chosen.apply(name, file.checked(name), whole=chosen.asked is not None)
    if chosen.asked is None and not os.environ.get(VARIABLE) and not chosen.as_json:
        _remark_another_here(name, os.environ.get(METADATA, ""))
    return os.environ.get(METADATA)


def _remark_another_here(name: str, uri: str) -> None:
    """Say that the current context leads away from the cluster of this directory, which `connect()` finds here."""
    if not Path(DATA_DIR).is_dir():
        return
    from buckram.errors import ConfigError

    try:
        here = default_uri({}, Path.cwd())
    except ConfigError:
        return
    if here != uri:
        click.echo(f"context {name} is used, and not ./{DATA_DIR}: `--metadata {here}` means that", err=True)


def check_name(name: str) -> str:
    """Return the name if it is valid. Raises InvalidArgument."""
    if _NAME.fullmatch(name) is None:
        from buckram.errors import InvalidArgument

        raise InvalidArgument(
            f"context {name!r}: needs 1 to 63 of the letters a to z and A to Z, digits, '.', '_' and '-', "
            "and begins with a letter or a digit"
        )
    return name


def path_of_contexts(environment: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/buckram/contexts.json, in ~/.config where that is not set."""
    base = environment.get("XDG_CONFIG_HOME", "")
    home = Path(base) if base.startswith("/") else Path(environment.get("HOME") or "~").expanduser() / ".config"
    return home / "buckram" / "contexts.json"


@dataclass
class Contexts:
    """Contexts stored in the file."""

    path: Path
    current: str | None = None
    known: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Contexts:
        """Read the contexts; empty if there is no file. Raises ConfigError if it cannot be read, or if other users can
        read it."""
        from buckram.errors import ConfigError

        path = path_of_contexts(os.environ)
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                raw = json.loads(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return cls(path)
        except OSError as error:
            raise _broken(path, error.strerror or str(error)) from None
        except ValueError as error:
            raise _broken(path, f"it is no JSON: {error}") from None
        if mode & 0o077:
            raise ConfigError(
                f"{path}: other users may read its tokens (mode {mode:04o}); `chmod 600 {path}` ends that"
            )
        return cls._parsed(path, raw)

    @classmethod
    def _parsed(cls, path: Path, raw: Any) -> Contexts:
        if not isinstance(raw, dict) or type(raw.get("version")) is not int:
            raise _broken(path, "it has no version")
        if raw["version"] > VERSION:
            raise _broken(path, f"its version {raw['version']} is of a later release; this one knows {VERSION}")
        known, current = raw.get("contexts"), raw.get("current")
        if not isinstance(known, dict) or not (current is None or isinstance(current, str)):
            raise _broken(path, "it has no contexts")
        for name, values in known.items():
            whole = isinstance(values, dict) and values.get("metadata")
            if not whole or not all(key in FIELDS and isinstance(value, str) for key, value in values.items()):
                raise _broken(path, f"context {name!r} needs metadata, and only texts of {', '.join(FIELDS)}")
        return cls(path, current, known)

    def of(self, name: str) -> dict[str, str]:
        """Return the fields of a context. Raises InvalidArgument, which lists the known contexts, for an unknown
        name."""
        found = self.known.get(name)
        if found is None:
            from buckram.errors import InvalidArgument

            there = f"known: {', '.join(sorted(self.known))}" if self.known else "none is known"
            raise InvalidArgument(f"context {name!r}: {there}; `buckram context add NAME --metadata URI` makes one")
        return found

    def checked(self, name: str) -> dict[str, str]:
        """Return the fields like `of`; raises ConfigError if a file that the context names cannot be read."""
        found = self.of(name)
        for key in FILES:
            if key in found and not os.access(found[key], os.R_OK):
                from buckram.errors import ConfigError

                raise ConfigError(
                    f"context {name}: {key} {found[key]} cannot be read; `buckram context add {name}` with an existing "
                    "file corrects it"
                )
        return found

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Save the changes made within the block: the file is replaced atomically and readable by its owner only."""
        yield
        body = {"version": VERSION, "current": self.current, "contexts": dict(sorted(self.known.items()))}
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(body, file, indent=1)
                file.write("\n")
            draft.replace(self.path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            from buckram.errors import ConfigError

            raise ConfigError(f"{self.path}: {error.strerror}; contexts need a folder that can be written") from None


def _broken(path: Path, why: str) -> Exception:
    from buckram.errors import ConfigError

    return ConfigError(f"{path}: {why}; correct it, or remove it and add the contexts again")
