"""What is needed of a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from buckram.errors import BuckramError

SqlValue: TypeAlias = int | float | str | bytes | None
Parameters: TypeAlias = Sequence[SqlValue] | Mapping[str, SqlValue]


class DatabaseError(BuckramError):
    """E."""


class SqlError(DatabaseError):
    """E."""

    def __init__(self, message: str, code: int = 1, extended_code: int = 1, name: str = "SQLITE_ERROR") -> None:
        super().__init__(message)
        self.code, self.extended_code, self.name = code, extended_code, name


class StatementRefused(DatabaseError):
    """E."""


class TransactionExpired(DatabaseError):
    """E."""


class TransactionTooLarge(DatabaseError):
    """E."""


class CommitUnknown(DatabaseError):
    """E."""


class DatabaseFailed(DatabaseError):
    """E."""


@dataclass(frozen=True, slots=True)
class SqlResult:
    columns: tuple[str, ...] = ()
    declared: tuple[str | None, ...] = ()
    rows: list[tuple[SqlValue, ...]] = field(default_factory=list)
    rows_affected: int = 0
    last_insert_rowid: int | None = None


@dataclass(frozen=True, slots=True)
class Described:
    columns: tuple[str, ...]
    declared: tuple[str | None, ...]
    parameters: tuple[str | None, ...]
    read_only: bool
    explain: bool


class OpenTransaction(Protocol):
    @property
    def active(self) -> bool: ...
    async def execute(self, sql: str, parameters: Parameters = ()) -> SqlResult: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class Database(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    async def execute(self, sql: str, parameters: Parameters = (), *, token: str | None = None) -> SqlResult: ...
    async def batch(
        self, statements: Sequence[tuple[str, Parameters]], *, token: str | None = None
    ) -> list[SqlResult]: ...
    async def query(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        consistency: Any = "linearizable",
        at_most_s: float | None = None,
    ) -> SqlResult: ...
    async def begin(self, mode: Any = "deferred") -> OpenTransaction: ...
    async def describe(self, sql: str) -> Described: ...
    async def leader_address(self) -> str | None: ...
    async def aclose(self) -> None: ...
