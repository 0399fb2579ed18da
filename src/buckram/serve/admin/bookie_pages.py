"""/api/v1/bookie/... and /api/v1/config/...: pages about the bookie that answers, as Apache's bookies answer.

The page `sanity` stores an entry on the bookie and reads it from there, through its port, as clients do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from buckram.addresses import read_address
from buckram.bookie.garbage.collector import Collector
from buckram.bookie.pages.http_thread import OtherLoop
from buckram.bookie.process import Bookie
from buckram.bookie.run import Site
from buckram.client.ledger_client import LedgerClient
from buckram.client.write.create import register
from buckram.client.write.engine import LedgerAppender
from buckram.client.write.writer import Writer
from buckram.core.ledgers.metadata import created
from buckram.errors import BuckramError, ConfigError, ReadFailed, WriteFailed
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.healing.operations.operator_calls import ask_readonly
from buckram.runtime.logs.process_log import levels, set_levels
from buckram.runtime.net.http_server import Answer, Request, json_answer, text_answer
from buckram.seams import Space
from buckram.serve.admin.cluster_link import ClusterLink
from buckram.serve.admin.job_pages import started
from buckram.serve.admin.routing import BookieOperation, RequestError, body_object, flag
from buckram.serve.operations.jobs import Job, Jobs, TooManyJobs
from buckram.types import BIRTH_SIZE, BookieId, DigestType

PATH, CONFIG = "/api/v1/bookie", "/api/v1/config/server_config"
LOG_LEVEL = "log.level"
log = logging.getLogger("buckram.admin")
_KINDS = {"journal": "journal files", "entrylog": "entrylog files", "index": "index files"}


class BookiePages:
    """Pages about this bookie; each question runs on the bookie's own event loop."""

    def __init__(self, site: Site, link: ClusterLink, jobs: Jobs) -> None:
        self._site, self._link, self._jobs = site, link, jobs
        self._forced = 0

    def operations(self) -> Sequence[BookieOperation]:
        return (
            BookieOperation("GET", CONFIG, "all settings, as `section.key` and under Apache's names", self._config),
            BookieOperation(
                "PUT",
                CONFIG,
                "only `log.level` changes while the bookie runs, others are refused (400)",
                self._set_config,
            ),
            BookieOperation("GET", f"{PATH}/info", "free and total bytes of this bookie", self._info),
            BookieOperation("GET", f"{PATH}/is_ready", "200 or 503, for probes", self._is_ready),
            BookieOperation("GET", f"{PATH}/state", "whether it runs, is read-only, and shuts down", self._state),
            BookieOperation("GET", f"{PATH}/state/readonly", "whether it is read-only", self._readonly),
            BookieOperation(
                "PUT",
                f"{PATH}/state/readonly",
                '`{"readOnly": true}`; it also holds after a restart, as `buckram bookie readonly` does',
                self._set_readonly,
            ),
            BookieOperation("GET", f"{PATH}/sanity", "an entry is stored on this bookie and read again", self._sanity),
            BookieOperation("GET", f"{PATH}/last_log_mark", "where the log ends", self._last_log_mark),
            BookieOperation("GET", f"{PATH}/list_disk_file", "files, all of which are log files here", self._files),
            BookieOperation(
                "PUT",
                f"{PATH}/expand_storage",
                "nothing to do: a bookie has one directory, another disk is for another bookie",
                self._expand,
            ),
            BookieOperation("GET", f"{PATH}/gc", "whether a collection that was asked for runs", self._collecting),
            BookieOperation("PUT", f"{PATH}/gc", "begins one (a job)", self._collect),
            BookieOperation(
                "GET",
                f"{PATH}/gc_details",
                "numbers and times of compactions, all of which count as major",
                self._gc_details,
            ),
            BookieOperation("GET", f"{PATH}/gc/suspend_compaction", "which kinds are suspended", self._suspended),
            BookieOperation(
                "PUT",
                f"{PATH}/gc/suspend_compaction",
                "with either kind suspended no log file is rewritten, until the bookie ends",
                self._suspend,
            ),
            BookieOperation(
                "PUT",
                f"{PATH}/gc/resume_compaction",
                '`{"resumeMajor": true}` or `resumeMinor`',
                self._resume,
            ),
            BookieOperation("GET", f"{PATH}/entry_location_compact", "empty", self._locations),
            BookieOperation(
                "PUT",
                f"{PATH}/entry_location_compact",
                "nothing to do: there is no such index",
                self._compact_locations,
            ),
        )

    @property
    def _bookie(self) -> OtherLoop[Bookie]:
        return self._site.bookie

    # -- settings

    async def _config(self, request: Request) -> Answer:
        """All settings in force, as "section.key", with Apache's names for those that have one."""
        settings = {
            f"{section}.{key}": str(value)
            for section, values in self._site.settings.items()
            for key, value in dataclasses.asdict(values).items()
        }
        bookie = self._site.settings["bookie"]
        advertised, http = read_address(bookie.advertise), read_address(bookie.http)
        theirs = {
            "bookiePort": str(bookie.port),
            "advertisedAddress": advertised.host if advertised else bookie.host,
            "bookieId": bookie.bookie_id,
            "metadataServiceUri": self._site.metadata_uri,
            "ledgerDirectories": self._site.directory,
            "journalDirectories": self._site.directory,
            "httpServerEnabled": "true",
            "httpServerPort": str(http.port) if http else "",
            "httpServerHost": http.host if http else "",
            "nettyMaxFrameSizeBytes": str(self._site.settings["net"].max_frame_bytes),
            "logSizeLimit": str(self._site.settings["store"].segment_bytes),
        }
        return json_answer(theirs | settings | {LOG_LEVEL: str(levels())})

    async def _set_config(self, request: Request) -> Answer:
        wanted = body_object(request, 404, "Request body not found. should contains k-v pairs")
        others = [name for name in wanted if name != LOG_LEVEL]
        if others:
            raise RequestError(
                400,
                f"{', '.join(others)[:200]}: of a bookie's settings only {LOG_LEVEL} changes while it runs; restart it "
                "with another",
            )
        if LOG_LEVEL in wanted:
            try:
                now = set_levels(str(wanted[LOG_LEVEL]), LOG_LEVEL)
            except ConfigError as error:
                raise RequestError(400, str(error)) from None
            log.warning("the level of this log is %s now", now)
        return text_answer("Success set server config.")

    # -- what it is

    async def _info(self, request: Request) -> Answer:
        space: Space = await self._bookie.ask(lambda bookie: bookie.disk_space())
        return json_answer({"freeSpace": space.free_bytes, "totalSpace": space.total_bytes})

    async def _is_ready(self, request: Request) -> Answer:
        state = await self._bookie.ask(lambda bookie: bookie.state)
        if state in ("writable", "readonly"):
            return text_answer("OK")
        return text_answer("Bookie is not fully started yet", 503)

    async def _state(self, request: Request) -> Answer:
        def found(bookie: Bookie) -> dict[str, bool]:
            store, state = bookie.store, bookie.state
            return {
                "running": state not in ("starting", "failed"),
                "readOnly": state == "readonly",
                "shuttingDown": bookie.stopping,
                "availableForHighPriorityWrites": store is not None and store.reserve_usable,
            }

        return json_answer(await self._bookie.ask(found))

    async def _readonly(self, request: Request) -> Answer:
        state = await self._bookie.ask(lambda bookie: bookie.state)
        return json_answer({"readOnly": state == "readonly"})

    async def _set_readonly(self, request: Request) -> Answer:
        """The wish is kept in the metadata store, so it also holds after a restart, unlike at Apache's bookies."""
        body = body_object(request, 400, 'Empty request body: needs {"readOnly": true} or false')
        wanted = flag(body, "readOnly")
        if wanted is None:
            raise RequestError(400, 'the body lacks readOnly: needs {"readOnly": true} or false')
        client = await self._link.client()
        try:
            await ask_readonly(client, await self._id(), wanted)
        except OperationRefused as error:
            raise RequestError(400, str(error)) from None
        return await self._readonly(request)

    async def _sanity(self, request: Request) -> Answer:
        """Store an entry on this bookie and read it again."""
        state = await self._bookie.ask(lambda bookie: bookie.state)
        if state == "readonly":
            return json_answer({"passed": False, "readOnly": True})
        client, bookie_id = await self._link.client(), await self._id()
        try:
            await stored_and_read(client, bookie_id)
            passed = True
        except (BuckramError, OSError, TimeoutError):
            passed = False
        return json_answer({"passed": passed, "readOnly": False})

    # -- files

    async def _last_log_mark(self, request: Request) -> Answer:
        position = await self._bookie.ask(lambda bookie: bookie.log_claim().position)
        where = f"LastLogMark: Journal Id - {position.seq}({position.seq:x}.txn)"
        return json_answer({where: f"Pos - {position.offset}"})

    async def _files(self, request: Request) -> Answer:
        """A bookie has no journal and no index of its own: its log files are both, and stand under entrylog."""
        wanted = request.query.get("file_type")
        names = sorted(await self._bookie.ask(lambda bookie: bookie.file_names()))
        logs = "".join(f"{name}\t" for name in names if name.endswith(".log"))
        others = "".join(f"{name}\t" for name in names if not name.endswith(".log"))
        found = {"journal": "", "entrylog": logs, "index": others}
        kinds = [wanted] if wanted in _KINDS else list(_KINDS)
        return json_answer({_KINDS[kind]: found[kind] for kind in kinds if kind is not None})

    async def _expand(self, request: Request) -> Answer:
        """A bookie has one directory, so there are never new ones: another disk is for another bookie."""
        return text_answer("Success expand storage")

    # -- collection and compaction

    async def _collecting(self, request: Request) -> Answer:
        return json_answer({"is_in_force_gc": str(self._forced > 0).lower()})

    async def _collect(self, request: Request) -> Answer:
        if request.body.strip():
            body = body_object(request, 400, "")
            flag(body, "forceMajor"), flag(body, "forceMinor")
        bookie_id = await self._id()
        self._forced += 1

        async def work(job: Job) -> Mapping[str, Any]:
            try:
                found = await self._bookie.wait(lambda bookie: _collector(bookie).collect(whole=True))
                return found.as_json()
            finally:
                self._forced -= 1

        try:
            job = self._jobs.start("collection", work)
        except TooManyJobs:
            self._forced -= 1
            raise
        return started(json_answer(f"Triggered GC on BookieServer: {bookie_id}"), job)

    async def _gc_details(self, request: Request) -> Answer:
        """One row, as for one directory. There is one kind of compaction, which is called major here."""
        forced = self._forced > 0

        def found(bookie: Bookie) -> dict[str, Any]:
            collector = _collector(bookie)
            ago = collector.ended_ago_s()
            return {
                "forceCompacting": forced,
                "majorCompacting": collector.compacting,
                "minorCompacting": False,
                "lastMajorCompactionTime": 0 if ago is None else int((time.time() - ago) * 1000),
                "lastMinorCompactionTime": 0,
                "lastEntryLocationCompactionTime": 0,
                "majorCompactionCounter": collector.compactions,
                "minorCompactionCounter": 0,
                "entryLocationCompactionCounter": 0,
            }

        return json_answer([await self._bookie.ask(found)])

    async def _suspended(self, request: Request) -> Answer:
        kinds = await self._bookie.ask(lambda bookie: frozenset(_collector(bookie).suspended))
        return json_answer({f"is{kind}GcSuspended": str(kind.lower() in kinds).lower() for kind in ("Major", "Minor")})

    async def _suspend(self, request: Request) -> Answer:
        return await self._switch(request, "suspend")

    async def _resume(self, request: Request) -> Answer:
        return await self._switch(request, "resume")

    async def _switch(self, request: Request, verb: str) -> Answer:
        body = body_object(request, 400, "Empty request body")
        kinds = [kind for kind in ("Major", "Minor") if flag(body, f"{verb}{kind}") is not None]
        if not kinds:
            raise RequestError(400, f"No {verb}Major or {verb}Minor params found")
        chosen = [kind for kind in kinds if body[f"{verb}{kind}"]]
        bookie_id = await self._id()

        def switch(bookie: Bookie) -> None:
            names = {kind.lower() for kind in chosen}
            collector = _collector(bookie)
            collector.suspended = collector.suspended | names if verb == "suspend" else collector.suspended - names

        await self._bookie.ask(switch)
        said = [f"{verb.title()} {kind.lower()}GC on BookieServer: {bookie_id}" for kind in chosen]
        return json_answer(", ".join(said))

    async def _locations(self, request: Request) -> Answer:
        return json_answer({})

    async def _compact_locations(self, request: Request) -> Answer:
        """Check the request as Apache's bookies do, and answer success without doing anything: locations have no index
        of their own beside the log files that could be compacted.
        """
        body = body_object(request, 400, "Empty request body")
        if not flag(body, "entryLocationRocksDBCompact"):
            return text_answer("Not trigger Entry Location RocksDB compact.")
        where = body.get("entryLocations") or ""
        if where:
            raise RequestError(
                400,
                f"Specified trigger compact entryLocations: {str(where)[:80]} is invalid. "
                "Bookie entry location RocksDB path: [].",
            )
        return json_answer(f"Triggered entry Location RocksDB compact on bookie:{await self._id()}")

    async def _id(self) -> BookieId:
        def found(bookie: Bookie) -> BookieId:
            if bookie.info is None:
                raise RequestError(503, "Bookie is not fully started yet")
            return bookie.info.bookie_id

        return await self._bookie.ask(found)


def _collector(bookie: Bookie) -> Collector:
    if bookie.collector is None:
        raise RequestError(503, "Bookie is not fully started yet")
    return bookie.collector


# -- sanity -----------------------------------------------------------------------------------------------

WITHIN_S = 10.0


async def stored_and_read(client: LedgerClient, bookie: BookieId) -> None:
    """Make a ledger of this bookie alone, write, read, delete it. Raises what fails, TimeoutError among it."""
    services = client.services
    record = created(
        1, 1, 1, (bookie,), digest_type=DigestType.CRC32C, password=b"", custom_metadata={"application": b"sanity"},
        creation_time_ms=services.runtime.clock.wall_us() // 1000,
        creator_token=secrets.randbelow(2**63 - 2) + 1,
        birth=secrets.token_bytes(BIRTH_SIZE),
    )  # fmt: skip
    async with asyncio.timeout(WITHIN_S):
        ledger, current = await register(services, None, record)
        try:
            writer = Writer(LedgerAppender(services, ledger, current, password=b""))
            async with writer:
                payload = secrets.token_bytes(64)
                await writer.append(payload)
            async with client.open(ledger) as reader:
                if any(fragment.ensemble != (bookie,) for fragment in reader.metadata.fragments):
                    raise WriteFailed(ledger, f"another bookie took the entry, because {bookie} failed")
                if bytes((await reader.get(0)).payload) != payload:
                    raise ReadFailed(ledger, f"bookie {bookie} gives another entry than it was sent")
        finally:
            await client.delete(ledger, force=True)
