"""Requests of the Hrana protocol, parsed from JSON. Raises Malformed for what violates the specification.

A batch that is one transaction, as clients of libSQL write it, is recognised (`fusible`), so that it can be executed as
one group: `client.batch([...])` becomes BEGIN, the statements, each on condition that the one before succeeded, COMMIT
on the same condition, and ROLLBACK if COMMIT did not succeed. Executed step by step this would be an interactive
transaction, which has the database for itself; as a group it shares its append with those of other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from buckram.core.db.sql_text import ClassifiedStatement, Kind
from buckram.serve.hrana.protocol.values import Malformed, SqlValue, decode_value

# -- requests ---------------------------------------------------------------------------------------------

MAX_REQUESTS, MAX_STEPS, MAX_DEPTH = 1024, 65_536, 64
"""Requests of one pipeline; steps of one batch; conditions within conditions."""
_INT32 = 1 << 31


class Sizes(NamedTuple):
    """Maximum requests of a pipeline, and maximum steps of a batch."""

    requests: int = MAX_REQUESTS
    steps: int = MAX_STEPS


SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class SqlRef:
    """SQL text, or the id of a stored text."""

    sql: str | None
    sql_id: int | None


@dataclass(frozen=True, slots=True)
class Stmt:
    """A statement. It has positional or named arguments, not both."""

    text: SqlRef
    args: tuple[SqlValue, ...] = ()
    named: tuple[tuple[str, SqlValue], ...] = ()
    want_rows: bool = True

    @property
    def parameters(self) -> Sequence[SqlValue] | dict[str, SqlValue]:
        """The arguments as the database takes them: positional, or by names without their prefix."""
        if not self.named:
            return self.args
        return {name[1:] if name[:1] in (":", "@", "$") else name: value for name, value in self.named}


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a step; `kind` is ok, error, not, and, or, is_autocommit."""

    kind: str
    step: int = 0
    parts: tuple[Condition, ...] = ()

    def holds(self, outcomes: Sequence[bool | None], autocommit: bool) -> bool:
        """`outcomes` of the steps before: True for one that succeeded, False for one that failed, None for skipped."""
        if self.kind == "ok":
            return outcomes[self.step] is True
        if self.kind == "error":
            return outcomes[self.step] is False
        if self.kind == "not":
            return not self.parts[0].holds(outcomes, autocommit)
        if self.kind == "is_autocommit":
            return autocommit
        judge = all if self.kind == "and" else any
        return judge(part.holds(outcomes, autocommit) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Step:
    stmt: Stmt
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Close:
    kind = "close"


@dataclass(frozen=True, slots=True)
class Execute:
    stmt: Stmt
    kind = "execute"


@dataclass(frozen=True, slots=True)
class Batch:
    steps: tuple[Step, ...]
    kind = "batch"


@dataclass(frozen=True, slots=True)
class Script:
    """A script."""

    text: SqlRef
    kind = "sequence"


@dataclass(frozen=True, slots=True)
class Describe:
    text: SqlRef
    kind = "describe"


@dataclass(frozen=True, slots=True)
class StoreSql:
    sql_id: int
    sql: str
    kind = "store_sql"


@dataclass(frozen=True, slots=True)
class CloseSql:
    sql_id: int
    kind = "close_sql"


@dataclass(frozen=True, slots=True)
class GetAutocommit:
    kind = "get_autocommit"


Request: TypeAlias = Close | Execute | Batch | Script | Describe | StoreSql | CloseSql | GetAutocommit


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    baton: str | None
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class CursorRequest:
    baton: str | None
    batch: Batch


# -- parsing ----------------------------------------------------------------------------------------------


def parse_pipeline(raw: Any, sizes: Sizes = SIZES) -> PipelineRequest:
    """The body of v2/pipeline and v3/pipeline."""
    body = _object(raw, "the body")
    requests = _list(body.get("requests"), "requests", sizes.requests, "requests")
    found = (parse_request(one, f"requests[{at}]", sizes) for at, one in enumerate(requests))
    return PipelineRequest(_baton(body), tuple(found))


def parse_cursor(raw: Any, sizes: Sizes = SIZES) -> CursorRequest:
    """The body of v3/cursor."""
    body = _object(raw, "the body")
    return CursorRequest(_baton(body), parse_batch(body.get("batch"), "batch", sizes))


def parse_batch(raw: Any, where: str, sizes: Sizes = SIZES) -> Batch:
    steps = _list(_object(raw, where).get("steps"), f"{where}.steps", sizes.steps, "steps")
    return Batch(tuple(_step(one, at, f"{where}.steps[{at}]") for at, one in enumerate(steps)))


def parse_stmt(raw: Any, where: str) -> Stmt:
    stmt = _object(raw, where)
    args, named = ([] if stmt.get(key) is None else stmt[key] for key in ("args", "named_args"))
    if not isinstance(args, list) or not isinstance(named, list):
        raise Malformed(f"{where}: args and named_args need lists")
    if args and named:
        raise Malformed(f"{where}: has args and named_args; give all arguments by position or all by name")
    want_rows = stmt.get("want_rows")
    if want_rows not in (None, True, False):
        raise Malformed(f"{where}.want_rows: needs true or false")
    return Stmt(
        _text(stmt, where),
        tuple(decode_value(one, f"{where}.args[{at}]") for at, one in enumerate(args)),
        tuple(_named(one, f"{where}.named_args[{at}]") for at, one in enumerate(named)),
        want_rows is not False,
    )


def _named(raw: Any, where: str) -> tuple[str, SqlValue]:
    arg = _object(raw, where)
    if not isinstance(arg.get("name"), str) or not arg["name"]:
        raise Malformed(f"{where}.name: needs a name")
    return arg["name"], decode_value(arg.get("value"), f"{where}.value")


def _step(raw: Any, at: int, where: str) -> Step:
    step = _object(raw, where)
    condition = step.get("condition")
    return Step(
        parse_stmt(step.get("stmt"), f"{where}.stmt"),
        None if condition is None else _condition(condition, at, f"{where}.condition", 0),
    )


def _condition(raw: Any, before: int, where: str, depth: int) -> Condition:
    if depth > MAX_DEPTH:
        raise Malformed(f"{where}: conditions are nested deeper than {MAX_DEPTH}; write a flatter one")
    found = _object(raw, where)
    kind = found.get("type")
    if kind in ("ok", "error"):
        step = found.get("step")
        if type(step) is not int or not 0 <= step < before:
            raise Malformed(f"{where}.step: {step!r} is none of the {before} steps before")
        return Condition(kind, step)
    if kind == "is_autocommit":
        return Condition(kind)
    if kind == "not":
        return Condition(kind, parts=(_condition(found.get("cond"), before, f"{where}.cond", depth + 1),))
    if kind in ("and", "or"):
        conds = _list(found.get("conds"), f"{where}.conds", MAX_STEPS, "")
        parts = (_condition(one, before, f"{where}.conds[{at}]", depth + 1) for at, one in enumerate(conds))
        return Condition(kind, parts=tuple(parts))
    raise Malformed(f"{where}.type: {kind!r} is none of ok, error, not, and, or, is_autocommit")


def parse_request(raw: Any, where: str, sizes: Sizes = SIZES) -> Request:
    """One request of a stream."""
    request = _object(raw, where)
    kind = request.get("type")
    parse = _REQUESTS.get(kind) if isinstance(kind, str) else None
    if parse is None:
        raise Malformed(f"{where}.type: {kind!r} is none of {', '.join(_REQUESTS)}")
    return parse(request, where, sizes)


_REQUESTS: dict[str, Callable[[dict[str, Any], str, Sizes], Request]] = {
    "close": lambda raw, where, sizes: Close(),
    "execute": lambda raw, where, sizes: Execute(parse_stmt(raw.get("stmt"), f"{where}.stmt")),
    "batch": lambda raw, where, sizes: parse_batch(raw.get("batch"), f"{where}.batch", sizes),
    "sequence": lambda raw, where, sizes: Script(_text(raw, where)),
    "describe": lambda raw, where, sizes: Describe(_text(raw, where)),
    "store_sql": lambda raw, where, sizes: StoreSql(_sql_id(raw, where), _sql(raw, where)),
    "close_sql": lambda raw, where, sizes: CloseSql(_sql_id(raw, where)),
    "get_autocommit": lambda raw, where, sizes: GetAutocommit(),
}


def _text(raw: dict[str, Any], where: str) -> SqlRef:
    if (raw.get("sql") is None) is (raw.get("sql_id") is None):
        raise Malformed(f"{where}: needs sql or sql_id, one of them")
    if raw.get("sql") is not None:
        return SqlRef(_sql(raw, where), None)
    return SqlRef(None, _sql_id(raw, where))


def _sql(raw: dict[str, Any], where: str) -> str:
    sql = raw.get("sql")
    if not isinstance(sql, str):
        raise Malformed(f"{where}.sql: needs a string")
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{where}.sql: has half of a surrogate pair, which UTF-8 cannot have") from None
    return sql


def _sql_id(raw: dict[str, Any], where: str) -> int:
    sql_id = raw.get("sql_id")
    if type(sql_id) is not int or not -_INT32 <= sql_id < _INT32:
        raise Malformed(f"{where}.sql_id: {sql_id!r} is no integer of 32 bits")
    return sql_id


def _baton(body: dict[str, Any]) -> str | None:
    baton = body.get("baton")
    if baton is not None and not isinstance(baton, str):
        raise Malformed("baton: needs the string of the last answer, or null")
    return baton


def _object(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise Malformed(f"{where}: needs an object")
    return raw


def _list(raw: Any, where: str, limit: int, name: str) -> list[Any]:
    if not isinstance(raw, list):
        raise Malformed(f"{where}: needs a list")
    if len(raw) > limit:
        option = f" (limit: `--limit {name}=` of the server)" if name else ""
        raise Malformed(f"{where}: has {len(raw)} elements, the limit is {limit}; send several{option}")
    return raw


# -- batches that are one transaction ---------------------------------------------------------------------


def fusible(steps: Sequence[Step], statements: Sequence[ClassifiedStatement]) -> bool:
    """Return whether the steps are one transaction whose statements run all or none. `statements` are those of the
    steps.
    """
    if len(steps) < 4 or statements[0].kind is not Kind.BEGIN or statements[0].mode == "readonly":
        return False
    commit, rollback = len(steps) - 2, len(steps) - 1
    return (
        steps[0].condition is None
        and statements[commit].kind is Kind.COMMIT
        and statements[rollback].kind is Kind.ROLLBACK
        and all(one.kind is Kind.OTHER for one in statements[1:commit])
        and all(_after(steps[at].condition, at - 1) for at in range(1, commit + 1))
        and _unless(steps[rollback].condition, commit)
    )


def _after(condition: Condition | None, step: int) -> bool:
    """Return whether a condition is "the step succeeded", possibly with "and the transaction is open"."""
    if condition is None:
        return False
    if condition.kind == "and":
        return any(_after(part, step) for part in condition.parts) and all(
            _after(part, step) or _inside(part) for part in condition.parts
        )
    return condition.kind == "ok" and condition.step == step


def _inside(condition: Condition) -> bool:
    return condition.kind == "not" and condition.parts[0].kind == "is_autocommit"


def _unless(condition: Condition | None, step: int) -> bool:
    return condition is not None and condition.kind == "not" and _after(condition.parts[0], step)
