"""etcd's refusals as Buckram's errors: which of its answers prove that nothing happened, and what helps."""

from __future__ import annotations

from buckram.errors import (
    AccessRefused,
    ConfigError,
    InvalidArgument,
    MetadataError,
    MetadataUnavailable,
    ValueTooLarge,
)

# gRPC's codes, as the gateway's JSON has them.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, EXHAUSTED, OUT_OF_RANGE, UNAUTHENTICATED = 3, 5, 7, 8, 11, 16
UNAVAILABLE = 14
REQUEST_LIMIT = 1_572_864
"""etcd's default of --max-request-bytes."""
OPS_LIMIT = 128
"""etcd's default of --max-txn-ops; conditions count like operations."""
_STALE_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")
_TRANSIENT = (2, 4, 13, UNAVAILABLE)
"""gRPC codes unknown, deadline exceeded, internal, unavailable: it is open whether the change happened."""


class EtcdRefused(Exception):
    """An error that etcd answered. `code` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def stale_token(self) -> bool:
        """Return whether the token must be fetched (anew); nothing happened then."""
        return any(words in self.message for words in _STALE_TOKEN)

    @property
    def transient(self) -> bool:
        return self.code in _TRANSIENT

    @property
    def overloaded(self) -> bool:
        """Return whether the server takes no more requests just now; nothing happened then."""
        return "too many requests" in self.message

    @property
    def no_lease(self) -> bool:
        return self.code == NOT_FOUND and "lease" in self.message

    @property
    def compacted(self) -> bool:
        return self.code == OUT_OF_RANGE


def translate(
    refused: EtcdRefused, what: str, hosts: str, size: int = 0
) -> MetadataError | ConfigError | InvalidArgument:
    """Return the error for callers. `what` names the key, `size` is the request's."""
    said = f"etcd at {hosts} says {refused.message!r}"
    if refused.code in (PERMISSION_DENIED, UNAUTHENTICATED) or "authentication" in refused.message:
        return AccessRefused(what, f"{said}: give user and password in the URI or in BUCKRAM_ETCD_AUTH")
    if refused.stale_token:
        return AccessRefused(what, f"{said}: it wants user and password, in the URI or in BUCKRAM_ETCD_AUTH")
    if "too large" in refused.message:
        return ValueTooLarge(f"{what} ({said}; its --max-request-bytes can be raised)", size, REQUEST_LIMIT)
    if "too many operations" in refused.message:
        return InvalidArgument(
            f"{what}: {said}: conditions and operations of one multi are limited to {OPS_LIMIT} each unless the "
            "servers' --max-txn-ops says otherwise; do less in one multi"
        )
    if refused.code == EXHAUSTED and "space" in refused.message:
        return MetadataUnavailable(
            f"{what}: {said}: compact and defragment its database, or raise --quota-backend-bytes, then "
            "`etcdctl alarm disarm`; until then nothing can be written"
        )
    if refused.code == NOT_FOUND and refused.message == "Not Found":
        return ConfigError(f"{said}: it is no etcd 3.5 or later, or runs with --enable-grpc-gateway=false")
    if refused.transient or refused.overloaded:
        return MetadataUnavailable(f"{what}: {said}; it is open whether it happened")
    return MetadataError(f"{what}: {said}")
