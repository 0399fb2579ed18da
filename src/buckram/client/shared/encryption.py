"""Where the keys of namespaces come from: a file or a command for each, read again when they change.

Not here: what is done with them (`core/security/encryption.py`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from buckram.config import EncryptionConfig
from buckram.core.entries.entry import Digest
from buckram.core.security.encryption import (
    ENCRYPTION,
    START_BYTES,
    Cipher,
    Key,
    LockedDigest,
    key_id_of,
    parse_keys,
    sealed_digest,
)
from buckram.core.security.namespace_rules import namespace_of_ledger
from buckram.errors import ConfigError, EncryptionKeyMissing
from buckram.runtime.net.security.certificate_files import check_key_file
from buckram.types import LedgerId, LedgerMetadata

COMMAND_S = 30.0
_PLACE = "{namespace}"


@dataclass(slots=True)
class _Loaded:
    keys: tuple[Key, ...]
    stamp: object
    """Stamp of the file that the keys are from; None if they are from a command."""
    at: float


@dataclass(frozen=True, slots=True)
class Sealing:
    """The key of a new ledger; None: its entries stay as they are."""

    key: Key | None

    @property
    def mark(self) -> dict[str, bytes]:
        """Return what goes into the ledger's custom metadata: the id of the key; empty without encryption."""
        return {} if self.key is None else {ENCRYPTION: self.key.key_id.encode()}

    def cipher(self, birth: bytes) -> Cipher | None:
        """Return the cipher of the ledger's one writer; None without encryption."""
        return None if self.key is None else Cipher(self.key, birth, os.urandom(START_BYTES))


class EncryptionKeys:
    """Keys by namespace, the first of each for what is written from now on. For any thread; `load` may block."""

    def __init__(self, config: EncryptionConfig | None = None) -> None:
        self._config = config or EncryptionConfig()
        for name, value in (("keys", self._config.keys), ("command", self._config.command)):
            if value and _PLACE not in value:
                raise ConfigError(
                    f"[encryption] {name} = {value!r}: it needs {_PLACE} in the place of the namespace's name"
                )
        self._loaded: dict[str, _Loaded] = {}
        self._lock = threading.Lock()

    @property
    def configured(self) -> bool:
        return bool(self._config.keys or self._config.command)

    def load(self, namespace: str, *, anew: bool = False) -> tuple[Key, ...]:
        """Return the keys of a namespace, empty if it has none here. `anew`: read them again. Raises ConfigError."""
        if not self.configured or "/" in namespace or namespace.startswith("."):
            return ()
        with self._lock:
            return self._from_file(namespace) or self._from_command(namespace, anew)

    def _from_file(self, namespace: str) -> tuple[Key, ...]:
        if not self._config.keys:
            return ()
        path = Path(self._config.keys.replace(_PLACE, namespace))
        try:
            seen = path.stat()
        except FileNotFoundError:
            self._loaded.pop(namespace, None)
            return ()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; the keys of namespace {namespace} are there") from None
        stamp = (seen.st_mtime_ns, seen.st_ino, seen.st_size)
        known = self._loaded.get(namespace)
        if known is None or known.stamp != stamp:
            check_key_file(str(path))
            try:
                text = path.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: {error}; the keys of namespace {namespace} are there") from None
            known = self._loaded[namespace] = _Loaded(parse_keys(text, str(path)), stamp, time.monotonic())
        return known.keys

    def _from_command(self, namespace: str, anew: bool) -> tuple[Key, ...]:
        if not self._config.command:
            return ()
        known = self._loaded.get(namespace)
        if known is None or anew or time.monotonic() >= known.at + self._config.refresh_s:
            words = [word.replace(_PLACE, namespace) for word in shlex.split(self._config.command)]
            known = self._loaded[namespace] = _Loaded(_ask(words, namespace), None, time.monotonic())
        return known.keys

    async def current(self, namespace: str, *, anew: bool = False) -> Key | None:
        """Return the key for a new ledger; None if the namespace has none. `anew` as for `load`. Raises ConfigError."""
        if not self.configured:
            return None
        keys = await asyncio.to_thread(self.load, namespace, anew=anew)
        return keys[0] if keys else None

    async def sealing(self, custom_metadata: Mapping[str, bytes], *, required: bool) -> Sealing:
        """Return the encryption of a new ledger with this custom metadata. Raises ConfigError, also if encryption is
        `required` and there is no key."""
        namespace = namespace_of_ledger(custom_metadata)
        key = await self.current(namespace)
        if key is None and required:  # a command may know one by now
            key = await self.current(namespace, anew=True)
        if key is None and required:
            raise ConfigError(
                f"namespace {namespace} is written encrypted, and this process has no key of it: name its place with "
                "[encryption] keys (BUCKRAM_ENCRYPTION_KEYS) or command"
            )
        return Sealing(key)

    def find(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Key | None:
        """Return the key of a ledger; None if it is not encrypted. Blocks. Raises EncryptionKeyMissing and
        ConfigError."""
        key_id = key_id_of(metadata.custom_metadata)
        if not key_id:
            return None
        namespace = namespace_of_ledger(metadata.custom_metadata)
        keys = self.load(namespace)
        found = next((key for key in keys if key.key_id == key_id), None)
        if found is None:  # a command may know it by now
            keys = self.load(namespace, anew=True)
            found = next((key for key in keys if key.key_id == key_id), None)
        if found is None:
            raise EncryptionKeyMissing(ledger_id, namespace, key_id, tuple(key.key_id for key in keys))
        return found

    def reading(self, ledger_id: LedgerId, metadata: LedgerMetadata, digest: Digest, password: bytes = b"") -> Digest:
        """Return the digest for a reader. Blocks. Raises EncryptionKeyMissing and ConfigError."""
        key = self.find(ledger_id, metadata)
        return digest if key is None else sealed_digest(metadata, digest, password, key)

    async def reading_later(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, digest: Digest, password: bytes = b""
    ) -> Digest:
        """Return the digest for a handle that may never read: a missing key is an error of each entry, not of this
        call."""
        try:
            return await self.reading_soon(ledger_id, metadata, digest, password)
        except (EncryptionKeyMissing, ConfigError) as error:
            return LockedDigest(digest, password, error)

    async def reading_soon(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, digest: Digest, password: bytes = b""
    ) -> Digest:
        """Return the digest for a reader without blocking the loop; otherwise as `reading`."""
        if not key_id_of(metadata.custom_metadata):
            return digest
        return await asyncio.to_thread(self.reading, ledger_id, metadata, digest, password)


def _ask(words: list[str], namespace: str) -> tuple[Key, ...]:
    """Run the command. Its output is a secret, which no error shows."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False, env=dict(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"no answer within {COMMAND_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise ConfigError(f"[encryption] command {words[0]}, for namespace {namespace}: {why}") from None
    if done.returncode != 0:
        raise ConfigError(f"[encryption] command {words[0]}, for namespace {namespace}: exit code {done.returncode}")
    text = done.stdout.decode(errors="replace")
    return parse_keys(text, f"[encryption] command {words[0]}, for namespace {namespace}") if text.strip() else ()
