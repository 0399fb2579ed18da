"""Operations: the API of a gateway. The server routes by them, and its OpenAPI document is made from them.

Not here: executing one (`serve/gateway/dispatch.py`), the document (`serve/gateway/openapi.py`), the handlers (the
modules `..._pages.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from buckram.core.objects.rows import check_object_name
from buckram.core.security.object_names import NameRange, object_name
from buckram.core.security.principal import Principal
from buckram.core.streams.names import StreamName, stream_name
from buckram.core.tenants.fair_share import holder_of
from buckram.serve.gateway.shared.error_answers import absent, bad_request
from buckram.serve.gateway.shared.schema import TEXT, WHOLE, YES_OR_NO, Schema, fault
from buckram.serve.hrana.targets import parse_reading
from buckram.serve.http.problems import HttpProblem, refusing
from buckram.serve.http.tokens import while_granted

SQL = "/v2/databases"
"""Under it are the same paths as at a server of databases, so that either sends requests on to the other."""
GATEWAY = "Buckram-Gateway"
"""Header of answers: the id of this process. Of a request: the id of the only process that shall carry it out."""
Need = Literal["nothing", "login", "read", "append", "create", "delete", "admin", "operator", "administrator"]
"""Authorization that a request needs: none; a login; a permission, granted as in `buckram acl`, on what its path
names; permission to see the whole cluster, which administrators have, and everybody at a gateway without tokens; or
being an administrator of the cluster. A handler may require more (`Ask.require`).
"""


class Allowed(Protocol):
    """Permissions of a principal, by the grants at the moment of each call."""

    def __call__(self, name: str) -> frozenset[str]:
        """Return the permissions on a namespace, a stream by its full name, or an object (`object_name`)."""
        ...

    def objects(self, namespace: str, permission: str) -> Sequence[NameRange]:
        """Return the names of objects on which there is a permission, in their order."""
        ...

    def sees(self, namespace: str) -> bool:
        """Return whether there is any permission on a namespace or on something in it."""
        ...

    @property
    def everything(self) -> bool:
        """Return whether the principal may see the whole cluster."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, checked against its operation: parameters and JSON body match the operation's declaration."""

    request: Request
    principal: Principal
    allowed: Allowed
    path: Mapping[str, str]
    """The parts of the path that have names."""
    query: Mapping[str, Any]
    """Every parameter of the operation, with its default where the request has none."""
    body: Any = None
    """The JSON body; an empty object where there is none."""
    raw: bytes = b""
    """The body of an operation that takes other media types than JSON."""
    media: str = ""
    """Its media type, one of those that the operation takes."""
    pieces: Callable[[int], AsyncIterator[bytes]] = lambda most: _nothing()
    """Yields the body of an operation that reads it itself, as it arrives, at most so many bytes."""
    watched: Callable[[], Callable[[], str]] = lambda: lambda: ""
    """Returns a function: why the request's token is no longer valid; empty while it is."""

    @property
    def holder(self) -> str:
        """The holder of this principal's share in limits that principals divide (`holder_of`)."""
        return holder_of(self.principal.name)

    @property
    def stream(self) -> StreamName:
        """The stream that the path names."""
        return _stream(self.path["stream"], self.path["namespace"])

    @property
    def object(self) -> str:
        """The name of the object that the path names. Raises HttpProblem 400, and InvalidArgument, for none."""
        name = self.path["object"]
        if "\ufffd" in name and name.encode() not in unquote_to_bytes(self.request.scope["raw_path"]):
            raise bad_request(f"object name {name[:60]!r}: the path has bytes that are no UTF-8; encode the name in it")
        return check_object_name(name)

    def require(self, permission: str, name: str, *, of: str = "", making: bool = False) -> None:
        """Raise HttpProblem if a permission was not granted on a namespace, stream or object: 403, or 404 for one that
        the client may not see at all, as if it did not exist. Nothing is looked up before.

        `of`: what the client has to see to get 403, if not `name`. `making`: it is about to be made, so 403 gives away
        no secret.
        """
        if permission in self.allowed(name):
            return
        if not making and not self.sees(of or name):
            raise self.unseen(of or name)
        raise HttpProblem(
            403,
            "FORBIDDEN",
            f"{self.principal} has no permission `{permission}` on {name} (`buckram acl grant` grants it)",
            value=name,
        )

    def sees(self, name: str) -> bool:
        """Return whether there is any permission on a namespace or something in it, on a stream, or on an object."""
        return bool(self.allowed(name)) if "/" in name else self.allowed.sees(name)

    def unseen(self, name: str) -> HttpProblem:
        """Return the 404 problem for something that the client may not see."""
        return refusing(absent(name, database="database" in self.path))

    def watch(self, permission: str, name: str) -> Callable[[], str]:
        """Return a function for long answers: why one has to end, because of the token or the grants; empty
        otherwise.
        """
        return while_granted(self.principal, self.allowed, permission, name, self.watched())

    def number(self, name: str) -> int:
        """Return a whole number that is part of the path. Raises HttpProblem 400."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise bad_request(f"{name} {text[:60]!r}: needs a whole number from 0 on, such as 7")
        return int(text)


Handler = Callable[[Ask], Awaitable[Response | Mapping[str, Any]]]
"""Handles a request: returns a whole response, or the JSON of one. Raises HttpProblem, or an error of the cluster."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the query."""

    name: str
    what: str
    """Description for the OpenAPI document."""
    schema: Schema = field(default_factory=lambda: TEXT)
    default: Any = None

    def parse(self, text: str) -> Any:
        """The value that a request gives. Raises HttpProblem 400."""
        kind, value = self.schema["type"], text
        found: Any = value
        if kind == "integer":
            digits = text.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
                raise bad_request(f"{self.name} = {text[:60]!r}: needs a whole number")
            found = int(text)
        elif kind == "boolean":
            if text not in ("true", "false"):
                raise bad_request(f"{self.name} = {text[:60]!r}: needs true or false")
            found = text == "true"
        if trouble := fault(found, self.schema, self.name):
            raise bad_request(trouble)
        return found


LIMIT = Parameter("limit", "Maximum number.", {**WHOLE, "minimum": 1, "maximum": 1000}, 100)
AFTER = Parameter("after", "Only what comes after this one: `next` of the page before.")
PREFIX = Parameter("prefix", "Only names that begin so.", TEXT, "")
FORCE = Parameter(
    "force", "Delete it even if a live writer cannot be fenced, because its bookies are gone.", YES_OR_NO, False
)


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` has names in braces, as in /v2/namespaces/{namespace}."""

    name: str
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    what: str
    """One sentence for people."""
    needs: Need
    handler: Handler
    answer: Schema
    status: int = 200
    parameters: Sequence[Parameter] = ()
    body: Schema | None = None
    takes: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the media types that a body may have instead of JSON. The first is the default."""
    gives: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the media types that the answer may have beside or instead of JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the request headers that have an effect."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Meanings of further statuses of answers that are no errors."""
    streamed: bool = False
    """True if the handler reads the body itself, by `Ask.pieces`, of any media type."""
    makes: bool = False
    """True if the operation creates what its path names. Without the permission the answer is then 403 in any case,
    whether or not that exists.
    """
    statements: bool = False
    """True if the request carries SQL statements, which need a token and never take a browser's session. The
    statements decide whether it changes something, and are repeated safely by tokens of their own, not by an
    Idempotency-Key.
    """

    @property
    def changes(self) -> bool:
        """Return whether the operation may change something."""
        return self.method not in ("GET", "HEAD")

    @property
    def keyed(self) -> bool:
        """Return whether an Idempotency-Key makes the operation run once."""
        return self.changes and not self.statements

    @property
    def routes(self) -> Sequence[str]:
        """Paths for Starlette: the name of an object has slashes, and some clients of databases append one slash more
        to an address.
        """
        if self.statements:
            return self.path, self.path.replace("{database}/", "{database}//")
        return (self.path.replace("{object}", "{object:path}"),)

    @property
    def subject(self) -> str:
        """Kind of the thing that a permission is needed on, as a word for people."""
        return next((kind for kind in ("object", "database") if f"{{{kind}}}" in self.path), "namespace")

    def parsed(self, given: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """The parameters of a query. Raises HttpProblem 400 for unknown, repeated and bad ones."""
        known = {one.name: one for one in self.parameters}
        found: dict[str, Any] = {one.name: one.default for one in self.parameters}
        seen: set[str] = set()
        for name, text in given:
            if name not in known or name in seen:
                what = "is given twice" if name in seen else "is unknown"
                raise bad_request(f"parameter {name[:60]!r} {what}; there are: {', '.join(known) or 'none'}")
            seen.add(name)
            found[name] = known[name].parse(text)
        return found


@lru_cache(4096)
def _stream(name: str, namespace: str) -> StreamName:
    return stream_name(name, namespace)


async def _nothing() -> AsyncIterator[bytes]:
    for piece in list[bytes]():
        yield piece


def granted_name(path: Mapping[str, str], *, statements: bool = False) -> str:
    """Return the name by which grants refer to what a path names: the full name of a stream or a database, an object,
    or else the namespace.

    `statements`: a database's name may carry the consistency of reads, as in main@stale=2, which is no part of it. What
    else is behind an @ is: main@2 is another database than main.
    """
    namespace = path["namespace"]
    if "object" in path:
        return object_name(namespace, path["object"])
    if "database" in path:
        full = f"{namespace}/{path['database']}"
        return parse_reading(full).database if statements else full
    return f"{namespace}/{path['stream']}" if "stream" in path else namespace


class OperationGroup(Protocol):
    """A group of operations."""

    title: str

    def operations(self) -> Sequence[Operation]:
        """Its operations."""
        ...
