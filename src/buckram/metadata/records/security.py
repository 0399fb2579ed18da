"""The security records of the metadata store: keys that sign tokens, tokens that were made, revocations, grants.

Below `own`/security: `signing/KEY_ID` (private), `keys/KEY_ID` (public), `tokens/ID`, `certificates/SERIAL`,
`revoked/ID` and `acl`. Whoever opens the store directly is an administrator; clients of bookies never see these keys.
Not here: the content of tokens (`core/security/tokens.py`), what grants allow (`core/security/acl.py`).
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.core.security.acl import ACL_PROPERTY, ACL_VERSION, LOGIN_PROPERTY, Acl
from buckram.core.security.tokens import Revocations, Token, certificate_id, new_signing_key, sign
from buckram.core.streams.names import DEFAULT_NAMESPACE, check_name
from buckram.errors import InvalidArgument, KeyExists, MalformedRecord, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.records.recorded_time import read_times
from buckram.metadata.tree.layout import DATABASE_SERVERS, GATEWAYS, SECURITY
from buckram.seams import KeyStore, MetadataStore, Notify
from buckram.types import Create, Delete, KeyOp, SetValue

_TRIES = 20
_MOST_SHOWN = 1000
_SUBJECT = "subject:"
_MOST_REVOKED_BYTES = 260
"""Maximum bytes of a revoked subject: the longest subject of an issuer of OIDC, with `oidc:` before it."""


@dataclass(frozen=True, slots=True)
class SecurityState:
    """Security state that a bookie needs: public keys by id, revocations, and grants (None: nothing was
    granted yet).
    """

    keys: Mapping[str, bytes] = field(default_factory=dict)
    revoked: Revocations = field(default_factory=Revocations)
    acl: Acl = field(default_factory=Acl)


class SecurityStore:
    """Reads and changes these keys; for processes that open the store directly."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._folder = f"{store.own}/{SECURITY}"

    @property
    def store(self) -> MetadataStore:
        """The store that these keys are in."""
        return self._store

    @property
    def _keys(self) -> KeyStore:
        return self._store.keys

    def _path(self, *parts: str) -> str:
        return "/".join((self._folder, *parts))

    async def state(self, watch: Notify | None = None) -> SecurityState:
        """Return the state as of now; the watch fires when any of it changes. Raises MalformedRecord, MetadataError."""
        await self._keys.sync()
        # The watches first: what changes between them and the reading is read again.
        for name in ("keys", "revoked"):
            await self._keys.children(self._path(name), watch=watch)
        acl = await self._acl(watch)
        keys = {name: value async for name, value in self._below("keys")}
        tokens, subjects = set[str](), dict[str, float]()
        async for name, value in self._below("revoked"):
            if name.startswith(_SUBJECT):
                subjects[_decoded(name)] = float(_parsed(self._path("revoked", name), value).get("before_s", 0))
            else:
                tokens.add(name)
        return SecurityState(keys, Revocations(frozenset(tokens), subjects), acl[0])

    async def _below(self, name: str) -> Any:
        after = ""
        while page := await self._keys.children_with_values(self._path(name), after=after):
            for child, found in page:
                yield child, found.value
            after = page[-1][0]

    async def prepare(self) -> None:
        """Make the first signing key if there is none, so that whoever follows the keys knows it in time."""
        await self.signing_key()

    # Tokens

    async def create_token(
        self, subject: str, roles: tuple[str, ...], now_s: float, expires_s: float, *, new_key: bool = False
    ) -> tuple[Token, str]:
        """Make a token and record that it was made; its text is not kept.

        `new_key`: sign with a new key from now on.
        """
        _check_subject(subject)
        key_id, private = await self.signing_key(new_key)
        token = Token(secrets.token_hex(8), subject, roles, now_s, expires_s)
        text = sign(token, await self._store.instance_id(), key_id, private)
        note = {"subject": subject, "roles": list(roles), "issued_s": now_s, "expires_s": expires_s, "key": key_id}
        await self._keys.create(self._path("tokens", token.token_id), json.dumps(note).encode())
        return token, text

    async def signing_key(self, new_key: bool = False) -> tuple[str, bytes]:
        """Return the newest key that signs, with its id; make it if there is none, or for `new_key`.

        Raises MetadataError, AccessRefused for a store that is not opened directly.
        """
        names = await self._keys.children(self._path("signing"))
        if names and not new_key:
            return names[-1], (await self._keys.get(self._path("signing", names[-1]))).value
        private, public = new_signing_key()
        key_id = f"{int(names[-1].partition('-')[0]) + 1 if names else 1:06d}-{secrets.token_hex(4)}"
        with contextlib.suppress(KeyExists):
            await self._keys.multi(
                [Create(self._path("signing", key_id), private), Create(self._path("keys", key_id), public)]
            )
        return key_id, private

    async def tokens(self) -> list[dict[str, Any]]:
        """Return the tokens that were made, in no particular order, each with whether it was revoked."""
        revoked = (await self.state()).revoked
        found = []
        async for name, value in self._below("tokens"):
            note = _parsed(self._path("tokens", name), value)
            roles = tuple(map(str, note.get("roles", ())))
            token = Token(name, str(note.get("subject")), roles, float(note["issued_s"]), float(note["expires_s"]))
            found.append({"id": name, **note, "revoked": bool(revoked.why(token))})
        return found

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token. Raises InvalidArgument for one that was never made here."""
        try:
            await self._keys.get(self._path("tokens", token_id))
        except (NoSuchKey, InvalidArgument):
            raise InvalidArgument(f"token {token_id!r}: none with this id; `buckram token list` shows them") from None
        with contextlib.suppress(KeyExists):
            await self._keys.create(self._path("revoked", token_id), b"{}")

    # Certificates that a command has issued

    async def note_certificate(self, serial: int, subject: str, now_s: float, expires_s: float) -> None:
        """Record that a certificate was issued, so that it can be listed and withdrawn."""
        _check_subject(subject)
        note = {"subject": subject, "issued_s": now_s, "expires_s": expires_s}
        await self._keys.create(self._path("certificates", f"{serial:x}"), json.dumps(note).encode())

    async def certificates(self) -> list[dict[str, Any]]:
        """Return the certificates that were issued, in no particular order, each with whether it was withdrawn."""
        revoked = (await self.state()).revoked
        found = []
        async for name, value in self._below("certificates"):
            note = _parsed(self._path("certificates", name), value)
            found.append({"serial": name, **note, "withdrawn": bool(revoked.why_certificate(int(name, 16)))})
        return found

    async def withdraw_certificate(self, serial: int) -> None:
        """Withdraw a certificate: from now on bookies refuse it. Idempotent."""
        with contextlib.suppress(KeyExists):
            await self._keys.create(self._path("revoked", certificate_id(serial)), b"{}")

    # All tokens of a subject

    async def revoke_subject(self, subject: str, now_s: float) -> None:
        """Revoke all tokens of the subject that were made before now.

        Now is the latest of our clock and of what bookies recorded: a clock that is behind leaves no token valid.
        """
        _check_subject(subject, _MOST_REVOKED_BYTES)
        recorded = [time.time_us / 1e6 for time in (await read_times(self._store)).values()]
        now_s = max([now_s, *recorded])
        path, value = self._path("revoked", _encoded(subject)), json.dumps({"before_s": now_s}).encode()
        for _ in range(_TRIES):
            ops: list[KeyOp] = [Create(path, value)]
            with contextlib.suppress(NoSuchKey):
                # Deleted and made anew in one step, so that watches of the list of keys fire.
                ops.insert(0, Delete(path, (await self._keys.get(path)).version))
            with contextlib.suppress(KeyExists, VersionConflict, NoSuchKey):
                await self._keys.multi(ops)
                return
        raise MetadataUnavailable(f"{path}: others changed it {_TRIES} times meanwhile; try again")

    # Grants

    async def has_namespace(self, namespace: str) -> bool:
        """Return whether there is such a namespace of streams."""
        if namespace == DEFAULT_NAMESPACE:
            return True
        try:
            await self._keys.get(f"{self._store.own}/streams/namespaces/{check_name('namespace', namespace)}")
        except NoSuchKey:
            return False
        return True

    async def acl(self) -> Acl:
        return (await self._acl(None))[0]

    async def _acl(self, watch: Notify | None) -> tuple[Acl, int | None]:
        path = self._path("acl")
        try:
            found = await self._keys.get(path, watch)
        except NoSuchKey:
            return Acl(), None
        try:
            return Acl.parse(found.value), found.version
        except ValueError as error:
            raise MalformedRecord(f"{path}: {error}; put a good copy back") from None

    async def change_acl(self, change: Any) -> Acl:
        """Replace the grants with what `change` makes of them, by compare-and-set.

        Raises InvalidArgument for a denial that not all bookies know.
        """
        path = self._path("acl")
        for _ in range(_TRIES):
            before, version = await self._acl(None)
            after: Acl = change(before)
            if set(after.denials) - set(before.denials):
                await self._check_denials_are_known()
            op: KeyOp = Create(path, after.encode()) if version is None else SetValue(path, after.encode(), version)
            with contextlib.suppress(KeyExists, VersionConflict, NoSuchKey):
                await self._keys.multi([op])
                return after
        raise MetadataUnavailable(f"{path}: others changed it {_TRIES} times meanwhile; try again")

    async def _check_denials_are_known(self) -> None:
        """Refuse a denial unless all servers know denials: a server of an earlier release would go on with the grants
        that it has read, and without the denial.
        """
        unknowing = [
            f"bookie {bookie}"
            for bookie, info in (await self._store.bookies()).everybody()
            if LOGIN_PROPERTY in info.properties and _number(info.properties.get(ACL_PROPERTY, "")) < ACL_VERSION
        ]
        for folder, kind in ((GATEWAYS, "gateway"), (DATABASE_SERVERS, "server of databases")):
            shown = await self._keys.children_with_values(f"{self._store.own}/{folder}", after="", limit=_MOST_SHOWN)
            unknowing += [
                f"{kind} {_said(kept.value, 'url') or name}" for name, kept in shown if not _knows(kept.value)
            ]
        if unknowing:
            names = ", ".join(unknowing[:3]) + (f" and {len(unknowing) - 3} more" if len(unknowing) > 3 else "")
            raise InvalidArgument(
                f"{names}: of an earlier release, which knows no denials and would go on without this one: upgrade "
                "all bookies, gateways and servers of databases first"
            )


def _knows(shown: bytes) -> bool:
    """Return whether the key of a server shows that it reads denials."""
    return _number(_said(shown, ACL_PROPERTY)) >= ACL_VERSION


def _said(shown: bytes, name: str) -> str:
    try:
        found = json.loads(shown).get(name, "")
    except (ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _check_subject(subject: str, most: int = 100) -> None:
    if not subject or len(subject.encode()) > most or not subject.isprintable():
        raise InvalidArgument(f"subject {subject[:100]!r}: needs 1 to {most} bytes of printable text")


def _encoded(subject: str) -> str:
    return _SUBJECT + subject.encode().hex()


def _decoded(name: str) -> str:
    try:
        return bytes.fromhex(name.removeprefix(_SUBJECT)).decode()
    except ValueError:
        return ""


def _parsed(path: str, value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise MalformedRecord(f"{path}: no JSON object; delete it, or put a good copy back")
    return found
