"""`buckram ledger check` and `repair`: one ledger, many, or all of them; one that cannot be read stops no other."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.bookie.decommission import rate_of
from buckram.cli.ledger.entries import LEDGER
from buckram.cli.shared.exits import Exit, exit_code_of, line_of
from buckram.cli.shared.options import cluster_options, connected, password_option, run_async
from buckram.cli.shared.output import counted, emit, progress, remark
from buckram.core.cluster.problems import Problem
from buckram.core.healing.status import named_rows
from buckram.core.streams.names import owner_of
from buckram.errors import BuckramError, InvalidArgument, MetadataUnavailable, NoSuchLedger
from buckram.runtime.net.pace import Pace

if TYPE_CHECKING:
    from buckram.client.maintain.check import CheckReport
    from buckram.client.maintain.repair_report import RepairReport
    from buckram.cluster import Client

_AT_ONCE = 8
COPIES = ("replicas", "replicas_lacking", "replicas_unknown")
_PROBLEMS = 100
"""Maximum problems in the last line; the line of each ledger has all of its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result for one ledger: its state, its line of JSON, its text for people, its problems, and the exit code."""

    ledger: int
    state: str
    line: dict[str, Any]
    texts: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    code: Exit = Exit.OK
    gone: bool = False
    """True if the ledger does not exist."""

    def as_json(self) -> dict[str, Any]:
        shown = {"ledger": self.ledger, "healthy": not self.problems, "state": self.state}
        return shown | self.line | {"problems": [one.as_json() for one in self.problems]}


@dataclass(slots=True)
class Sums:
    """Sums over all ledgers of a run."""

    ledgers: int = 0
    states: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    bytes: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    """Set by `check`: numbers of copies of entries that are required, that lack, and that could not be checked."""
    problems: list[Problem] = field(default_factory=list)
    code: Exit = Exit.OK
    stopped: str = ""
    """Reason why the run ended before all ledgers were done; empty if it did not."""

    def add(self, one: Outcome) -> None:
        self.ledgers += 1
        self.states[one.state] += 1
        self.entries += one.line.get("entries_copied", 0)
        self.bytes += one.line.get("bytes_copied", 0)
        for key in COPIES:
            self.copies[key] += one.line.get(key, 0)
        self.problems += one.problems[: max(0, _PROBLEMS - len(self.problems))]
        self.code = max(self.code, one.code)


Work = Callable[["Client", int], Awaitable[Outcome]]


def _which(ledgers: tuple[int, ...], everything: bool) -> Sequence[int] | None:
    """Return the ledgers, each once; None: all of them. Raises InvalidArgument."""
    if everything == bool(ledgers):
        raise InvalidArgument("name the ledgers, or give --all" if not ledgers else "--all: name no ledgers beside it")
    return None if everything else list(dict.fromkeys(ledgers))


async def _ids(client: Client, wanted: Sequence[int] | None) -> AsyncIterator[int]:
    if wanted is None:
        async for ledger in client.list():
            yield ledger
    else:
        for ledger in wanted:
            yield ledger


async def _run(uri: str | None, wanted: Sequence[int] | None, work: Work, as_json: bool) -> Sums:
    """Do the work for each ledger, some at the same time, and print as they end, in the order of their ids."""
    sums, alone = Sums(), wanted is not None and len(wanted) == 1
    with progress("ledgers", None if wanted is None else len(wanted), show=not alone) as advance:
        async with connected(uri) as client:
            part: list[int] = []
            async for ledger in _ids(client, wanted):
                part.append(ledger)
                if len(part) == _AT_ONCE:
                    await _some(client, part, work, sums, as_json, alone, wanted is None)
                    advance(len(part))
                    part = []
                if sums.stopped:
                    break
            if part and not sums.stopped:
                await _some(client, part, work, sums, as_json, alone, wanted is None)
                advance(len(part))
    return sums


async def _some(
    client: Client, ledgers: list[int], work: Work, sums: Sums, as_json: bool, alone: bool, listed: bool
) -> None:
    outcomes = await asyncio.gather(*(_guarded(client, ledger, work, alone) for ledger in ledgers))
    for one in outcomes:
        if isinstance(one, MetadataUnavailable):
            sums.stopped = line_of(one)
            sums.code = max(sums.code, Exit.TRY_AGAIN)
            return
        if listed and one.gone:
            continue  # it was deleted since it was listed
        sums.add(one)
        if as_json:
            emit(one.as_json())
        elif one.problems or not listed:
            print(*one.texts, sep="\n", flush=True)


async def _guarded(client: Client, ledger: int, work: Work, alone: bool) -> Outcome | MetadataUnavailable:
    """Return the outcome of one ledger, also for an error. The error of a single ledger (`alone`) is raised and ends
    the command."""
    try:
        return await work(client, ledger)
    except MetadataUnavailable as error:
        if alone:
            raise
        return error
    except BuckramError as error:
        if alone:
            raise
        return _failed(ledger, error)


def _failed(ledger: int, error: BuckramError) -> Outcome:
    why = line_of(error)
    problem = Problem("ledger failed", str(ledger), why, "see the reason; the other ledgers were checked all the same")
    return Outcome(
        ledger,
        "failed",
        {},
        (f"ledger {ledger}: {why}",),
        (problem,),
        exit_code_of(error),
        isinstance(error, NoSuchLedger),
    )


def _end(sums: Sums, as_json: bool, alone: bool, extra: dict[str, Any], more: str = "") -> None:
    """Print the last line with the sums and exit with the code. `extra` and `more` are additional contents of that
    line."""
    if not alone and as_json:
        shown = {"ledgers": sums.ledgers, "healthy": not sums.problems and not sums.stopped, "states": sums.states}
        emit(shown | extra | {"stopped": sums.stopped or None, "problems": [one.as_json() for one in sums.problems]})
    elif not alone:
        states = ", ".join(f"{number} {state}" for state, number in sorted(sums.states.items()))
        print(f"{counted(sums.ledgers, 'ledger')}: {states or 'none'}{more}")
    if sums.stopped:
        remark(f"stopped before all were done: {sums.stopped}")
    if sums.code is not Exit.OK:
        raise click.exceptions.Exit(sums.code)


@click.command("check")
@click.argument("ledgers", type=LEDGER, nargs=-1, metavar="ID...")
@click.option("--all", "everything", is_flag=True, help="Check every ledger of the cluster.")
@click.option(
    "--read", is_flag=True, help="Read every copy and verify its digest; default: compare the bookies' lists."
)
@click.option(
    "--rate", metavar="SIZE", help="With --read, maximum bytes read per second, such as 20MB; default no limit."
)
@cluster_options
def check(
    ledgers: tuple[int, ...], everything: bool, read: bool, rate: str | None, uri: str | None, as_json: bool
) -> None:
    """Check that every bookie has all the entries that it must have. It changes nothing.

    It reports for each ledger: healthy, lacks copies (how many of how many, which bookie, which entries), damaged (with
    --read), or unknown, where a bookie does not answer. Entries that can still be written are not checked. With --json
    a line for each ledger, and for more than one a last line with the sums. The exit code is the highest that any
    ledger has: 1 copies are missing, 4 it could not be determined.

    \b
    Examples:
      buckram ledger check 7
      buckram ledger check --all --read --rate 50MB
    """
    wanted = _which(ledgers, everything)
    if rate is not None and not read:
        raise InvalidArgument(f"--rate {rate}: lists are short; it limits --read")
    pace = Pace(rate_of(rate))

    async def work(client: Client, ledger: int) -> Outcome:
        from buckram.client.maintain.check import check_ledger

        return _checked(await check_ledger(client.services, ledger, read=read, pace=pace))

    sums = run_async(_run(uri, wanted, work, as_json))
    numbers = {key: sums.copies[key] for key in COPIES}
    said = f"; {_of_copies(*numbers.values())}" if sums.problems else ""
    _end(sums, as_json, wanted is not None and len(wanted) == 1, numbers, said)


def _of_copies(copies: int, lacking: int, unknown: int) -> str:
    """Describe how many of the copies of entries lack, and how many could not be checked."""
    parts = [f"{lacking} of {counted(copies, 'copy')} of entries are missing"] if lacking else []
    parts += [f"{unknown} of {counted(copies, 'copy')} of entries could not be checked"] if unknown else []
    return ", ".join(parts) or f"{counted(copies, 'copy')} of entries"


def _checked(found: CheckReport) -> Outcome:
    ledger = found.ledger_id
    problems = [
        Problem(
            "copies damaged" if one.kind == "damaged" else "copies lack",
            f"ledger {ledger}, bookie {one.bookie}",
            f"{counted(one.entries, 'entry')} ({named_rows(one.rows)}): {one.why}",
            f"`buckram ledger repair {ledger}`" if one.kind != "away" else f"start bookie {one.bookie}, or repair it",
        )
        for one in found.lacking
    ]
    problems += [
        Problem("unknown", f"ledger {ledger}, bookie {bookie}", why, "start the bookie, and check again")
        for bookie, why in found.unknown.items()
    ]
    still = "" if found.open_from is None else f"; entries from {found.open_from} on can still be written"
    said = _of_copies(found.replicas, found.replicas_lacking, found.replicas_unknown)
    texts = [f"ledger {ledger}: {found.state}, {said}{still}"]
    texts += [f"  {one.where}: {one.why}" for one in problems]
    line = {
        "replicas": found.replicas,
        "replicas_lacking": found.replicas_lacking,
        "replicas_unknown": found.replicas_unknown,
        "lacking": [dataclasses.asdict(one) for one in found.lacking],
        "unknown": found.unknown,
        "open_from": found.open_from,
    }
    code = Exit.FAILED if found.lacking else Exit.TRY_AGAIN if found.unknown else Exit.OK
    return Outcome(ledger, found.state, line, tuple(texts), tuple(problems), code)


@click.command("repair")
@click.argument("ledgers", type=LEDGER, nargs=-1, metavar="ID...")
@click.option("--all", "everything", is_flag=True, help="Repair every ledger, with the password in its record.")
@click.option("--rate", metavar="SIZE", help="Maximum bytes read or copied per second, such as 20MB; default no limit.")
@password_option
@cluster_options
def repair(
    ledgers: tuple[int, ...], everything: bool, rate: str | None, password: str, uri: str | None, as_json: bool
) -> None:
    """Copy missing or bad entries from good replicas. Where a bookie is gone, they go onto another one.

    Every copy is read. It reports what it did; a ledger that cannot be repaired does not stop the others. With --json a
    line for each ledger, and for more than one a last line with the sums. The exit code is the highest that any ledger
    has: 1 when something is left to repair.

    \b
    Examples:
      buckram ledger repair 7
      buckram ledger repair --all --rate 50MB
    """
    wanted = _which(ledgers, everything)
    pace = Pace(rate_of(rate))

    async def work(client: Client, ledger: int) -> Outcome:
        return await _repair(client, ledger, None if everything and not password else password.encode(), pace)

    sums = run_async(_run(uri, wanted, work, as_json))
    extra = {"entries_copied": sums.entries, "bytes_copied": sums.bytes}
    _end(sums, as_json, wanted is not None and len(wanted) == 1, extra)


async def _repair(client: Client, ledger: int, password: bytes | None, pace: Pace) -> Outcome:
    from buckram.client.maintain.repair import repair_ledger

    metadata = (await client.services.store.read_ledger(ledger)).metadata
    known = metadata.password or b"" if password is None else password
    report = await repair_ledger(client.services, ledger, password=known, pace=pace)
    owner = owner_of(metadata.custom_metadata)
    if owner is not None and not metadata.closed:
        remark(
            f"ledger {ledger} is the open segment of stream {owner[0]}: if its writer is dead, "
            f"`buckram stream seal {owner[0]}`, then repair again"
        )
    return _repaired(report)


def _repaired(report: RepairReport) -> Outcome:
    ledger = report.ledger_id
    fragments = counted(report.fragments_checked, "fragment")
    texts = [
        f"ledger {ledger}: checked {counted(report.replicas_checked, 'replica')} of entries in {fragments}",
        f"copied {counted(report.entries_copied, 'entry')}, {counted(report.bytes_copied, 'byte')}",
    ]
    texts += [f"from entry {change.first_entry}: {change.new} instead of {change.old}" for change in report.replaced]
    texts += [f"left to repair: {problem}" for problem in report.problems]
    problems = [
        Problem("left to repair", f"ledger {ledger}", str(one), "repair it again later") for one in report.problems
    ]
    line = dataclasses.asdict(report)
    for key in ("ledger_id", "problems"):
        line.pop(key)
    line["replaced"] = [dataclasses.asdict(change) for change in report.replaced]
    state = "healthy" if report.healthy else "left to repair"
    return Outcome(ledger, state, line, tuple(texts), tuple(problems), Exit.OK if report.healthy else Exit.FAILED)
