"""/api/v1/bookie/list_bookies and its neighbours, and /api/v1/autorecovery/...: what concerns the whole cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.core.healing.lost_bookies import DEFAULT_DELAY_S
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import BuckramError
from buckram.healing.operations.decommission import forget
from buckram.healing.operations.dependency_check import OperationRefused, ledgers_naming, spaces
from buckram.health.removal_gate import check_removable
from buckram.metadata.records.auditor_election import Election, elected_of
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.net.http_server import Answer, Request, json_answer, text_answer
from buckram.serve.admin.cluster_link import ClusterLink
from buckram.serve.admin.job_pages import started
from buckram.serve.admin.routing import BookieOperation, RequestError, body_object, flag
from buckram.serve.operations.jobs import Job, Jobs
from buckram.serve.operations.maintenance import decommissioned
from buckram.types import BookieId, BookieSet

BOOKIE, RECOVERY = "/api/v1/bookie", "/api/v1/autorecovery"
LONGEST_DELAY_S = 2**31 - 1


class AdminClusterPages:
    """The cluster that the bookie is in, through a client."""

    def __init__(self, link: ClusterLink, jobs: Jobs) -> None:
        self._link, self._jobs = link, jobs

    def operations(self) -> Sequence[BookieOperation]:
        return (
            BookieOperation(
                "GET",
                f"{BOOKIE}/list_bookies",
                "`type=rw` or `ro`, `print_hostnames=true`",
                self._bookies,
            ),
            BookieOperation("GET", f"{BOOKIE}/list_bookie_info", "free and total bytes of all bookies", self._spaces),
            BookieOperation(
                "GET",
                f"{BOOKIE}/cluster_info",
                "auditor, whether ledgers lack copies, numbers of bookies",
                self._cluster,
            ),
            BookieOperation("GET", f"{RECOVERY}/status", "whether recovery of the whole cluster is on", self._status),
            BookieOperation("PUT", f"{RECOVERY}/status", "`enabled=true` or `false`", self._set_status),
            BookieOperation(
                "GET",
                f"{RECOVERY}/list_under_replicated_ledger",
                "`missingreplica`, `excludingmissingreplica`, `printmissingreplica`",
                self._marked,
            ),
            BookieOperation("GET", f"{RECOVERY}/who_is_auditor", "the bookie whose auditor is elected", self._auditor),
            BookieOperation("PUT", f"{RECOVERY}/trigger_audit", "makes the auditor start an audit now", self._audit),
            BookieOperation("GET", f"{RECOVERY}/lost_bookie_recovery_delay", "the delay in force", self._delay),
            BookieOperation(
                "PUT",
                f"{RECOVERY}/lost_bookie_recovery_delay",
                '`{"delay_seconds": 300}`',
                self._set_delay,
            ),
            BookieOperation(
                "PUT",
                f"{RECOVERY}/decommission",
                '`{"bookie_src": "ID"}`: as `buckram bookie decommission`, a job',
                self._decommission,
            ),
            BookieOperation(
                "PUT",
                f"{RECOVERY}/bookie",
                '`{"bookie_src": ["ID"], "delete_cookie": false}`: repairs every ledger that names it, a job',
                self._recover,
            ),
        )

    # -- bookies

    async def _bookies(self, request: Request) -> Answer:
        store = (await self._link.client()).services.store
        found = await store.bookies()
        chosen = found.readonly if request.query.get("type") == "ro" else found.writable
        with_hosts = request.query.get("print_hostnames") == "true"
        return json_answer(
            {
                bookie: (info.address.host if info.address is not None else "") if with_hosts else None
                for bookie, info in sorted(chosen.items())
            }
        )

    async def _spaces(self, request: Request) -> Answer:
        """Apache's texts, its unpaired comma and colon included; a bookie that does not answer has none."""
        client = await self._link.client()
        registered: BookieSet = await client.services.store.bookies()
        names = [bookie for bookie, _ in registered.everybody()]
        found: dict[str, str] = {}
        sums = [0, 0]
        for bookie, space in (await spaces(client, names)).items():
            found[bookie] = f": {{Free: {_readable(space[0])}, Total: {_readable(space[1])}}},"
            sums = [sums[0] + space[0], sums[1] + space[1]]
        if not found:
            raise RequestError(404, "Not found any Bookie info.")
        found["ClusterInfo: "] = f"{{Free: {_readable(sums[0])}, Total: {_readable(sums[1])}}}"
        return json_answer(found)

    async def _cluster(self, request: Request) -> Answer:
        store = (await self._link.client()).services.store
        tree = Underreplication(store.keys, store.root, "")
        registered = await store.bookies()
        known = {*await store.known_bookies(), *registered.writable, *registered.readonly}
        readonly = len(registered.readonly.keys() - registered.writable.keys())
        auditor = elected_of(await Election(store.keys, store.root, "").votes())
        marked = False
        async for _ in tree.marked():
            marked = True
            break
        return json_answer(
            {
                "auditorElected": bool(auditor),
                "auditorId": auditor,
                "clusterUnderReplicated": marked,
                "ledgerReplicationEnabled": await tree.enabled(),
                "totalBookiesCount": len(known),
                "writableBookiesCount": len(registered.writable),
                "readonlyBookiesCount": readonly,
                "unavailableBookiesCount": len(known) - len(registered.writable) - readonly,
            }
        )

    # -- autorecovery

    async def _tree(self) -> Underreplication:
        store = (await self._link.client()).services.store
        tree = Underreplication(store.keys, store.root, "")
        await tree.prepare()
        return tree

    async def _status(self, request: Request) -> Answer:
        return json_answer({"enabled": await (await self._tree()).enabled()})

    async def _set_status(self, request: Request) -> Answer:
        """As Apache's, `true` in any case switches on, and everything else off."""
        wanted = request.query.get("enabled")
        if wanted is None:
            raise RequestError(400, f"Param 'enabled' not found in {dict(request.query)}")
        await (await self._tree()).enable(wanted.lower() == "true")
        return await self._status(request)

    async def _marked(self, request: Request) -> Answer:
        tree = await self._tree()
        including = request.query.get("missingreplica", "").strip()
        excluding = request.query.get("excludingmissingreplica", "").strip()
        found: dict[str, list[str]] = {}
        async for ledger in tree.marked():
            mark = await tree.read_mark(ledger)
            missing = list(mark.replicas) if mark is not None else []
            if mark is None or (including and including not in missing) or (excluding and excluding in missing):
                continue
            found[str(ledger)] = missing
        if not found:
            raise RequestError(404, "No under replicated ledgers found")
        if "printmissingreplica" in request.query:
            return json_answer(found)
        return json_answer([int(ledger) for ledger in found])

    async def _auditor(self, request: Request) -> Answer:
        store = (await self._link.client()).services.store
        auditor = elected_of(await Election(store.keys, store.root, "").votes())
        if not auditor:
            raise RequestError(404, "No auditor elected")
        return text_answer(f"Auditor: {auditor}")

    async def _audit(self, request: Request) -> Answer:
        """Write the delay in force again, which makes the auditor start an audit now."""
        tree = await self._tree()
        await tree.set_delay(round((await tree.read_delay(DEFAULT_DELAY_S)).seconds))
        return text_answer("Success trigger audit.")

    async def _delay(self, request: Request) -> Answer:
        delay = await (await self._tree()).read_delay(DEFAULT_DELAY_S)
        return text_answer(f"lostBookieRecoveryDelay value: {round(delay.seconds)}")

    async def _set_delay(self, request: Request) -> Answer:
        body = body_object(request, 404, "Null request body for lostBookieRecoveryDelay.")
        if "delay_seconds" not in body:
            raise RequestError(404, "Request body not contains lostBookieRecoveryDelay.")
        seconds = body["delay_seconds"]
        if type(seconds) is not int or not 0 <= seconds <= LONGEST_DELAY_S:
            raise RequestError(400, f"delay_seconds = {seconds!r}: needs a whole number from 0 to {LONGEST_DELAY_S}")
        await (await self._tree()).set_delay(seconds)
        return text_answer(f"Success set lostBookieRecoveryDelay to {seconds}")

    # -- jobs

    async def _decommission(self, request: Request) -> Answer:
        body = body_object(request, 404, "Null request body for DecommissionService.")
        if "bookie_src" not in body:
            raise RequestError(404, "Request body not contains bookie_src.")
        bookie = _bookie_id(body["bookie_src"])
        await _check_removable(await self._link.client(), bookie)

        async def work(job: Job) -> Mapping[str, Any]:
            async with self._link.lasting() as own:
                return await decommissioned(own, bookie, job)

        job = self._jobs.start(f"decommission {bookie}", work)
        return started(text_answer(f"Success send decommission Bookie command {bookie}"), job)

    async def _recover(self, request: Request) -> Answer:
        """Repair every ledger that names the bookie, here and now, without the auditor."""
        body = body_object(request, 404, "No request body provide.", 404)
        sources = body.get("bookie_src")
        if not isinstance(sources, list) or not sources:
            raise RequestError(
                404, 'ERROR parameters: bookie_src has to be a list of bookies, for example ["host:3181"]'
            )
        bookie, forgotten = _bookie_id(sources[0]), bool(flag(body, "delete_cookie"))
        if forgotten:
            await _check_removable(await self._link.client(), bookie)

        async def work(job: Job) -> Mapping[str, Any]:
            async with self._link.lasting() as own:
                return await _recovered(own, bookie, forgotten, job)

        job = self._jobs.start(f"recover {bookie}", work)
        return started(text_answer("Success send recovery request command."), job)


async def _recovered(client: LedgerClient, bookie: BookieId, forgotten: bool, job: Job) -> Mapping[str, Any]:
    store = client.services.store
    naming = list(await ledgers_naming(store, bookie))
    failed: dict[str, str] = {}
    for done, ledger in enumerate(naming):
        job.progress(done, len(naming), "ledgers")
        try:
            await client.repair(ledger)
        except BuckramError as error:
            failed[str(ledger)] = str(error)
    job.progress(len(naming), len(naming), "ledgers")
    left = await ledgers_naming(store, bookie, naming)
    if forgotten and not left:
        await forget(store, bookie)
    return {"bookie": bookie, "ledgers": len(naming), "remaining": len(left), "failed": failed}


async def _check_removable(client: LedgerClient, bookie: BookieId) -> None:
    try:
        await check_removable(client, bookie)
    except OperationRefused as error:
        raise RequestError(400, str(error)) from None


def _bookie_id(given: object) -> BookieId:
    if not isinstance(given, str) or not valid_bookie_id(given):
        raise RequestError(404, f"bookie_src = {str(given)[:80]!r} is no bookie id")
    return given


def _readable(size: int) -> str:
    """As Apache writes it: the bytes, and in brackets thousands of thousands with three digits, rounded down."""
    units, number = ["", "KB", "MB", "GB", "TB"], 0
    scaled = size
    while scaled >= 1000 ** (number + 1) and number < len(units) - 1:
        number += 1
    if not number:
        return str(size)
    thousandths = size * 1000 // 1000**number
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}".rstrip("0").rstrip(".")
    return f"{size}({text}{units[number]})"
