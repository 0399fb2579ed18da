"""Long jobs that HTTP requests start: each has an id, a progress, an end, and can be cancelled.

Bounded: of jobs that have ended the oldest of whoever has most are forgotten, and only so many run at a time, of which
nobody has all.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.core.tenants.fair_share import FairShare, Owned, holder_of
from buckram.runtime.process.tasks import TaskScope

log = logging.getLogger("buckram.admin")
MOST_KEPT, MOST_RUNNING = 200, 8


class JobError(Exception):
    """A request about jobs that is refused, with the status and the code of its answer."""

    status: int
    code: str


class NoSuchJob(JobError):
    status, code = 404, "NO_SUCH_JOB"


class TooManyJobs(JobError):
    status, code = 503, "TOO_MANY_JOBS"


@dataclass(slots=True)
class Job:
    """A long job. `done` and `total` count in `unit`; `total` is None while it is unknown."""

    id: str
    what: str
    owner: str = ""
    """Name of the principal who started the job, empty if unknown; not part of the JSON."""
    state: str = "running"
    """running, done, failed or cancelled."""
    unit: str = ""
    done: int = 0
    total: int | None = None
    eta_s: float | None = None
    error: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    def progress(self, done: int, total: int | None, unit: str, eta_s: float | None = None) -> None:
        self.done, self.total, self.unit, self.eta_s = done, total, unit, eta_s

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "what": self.what,
            "state": self.state,
            "progress": {"done": self.done, "total": self.total, "unit": self.unit, "eta_s": self.eta_s},
            "error": self.error or None,
            "result": dict(self.result),
        }


Work = Callable[[Job], Awaitable[Mapping[str, Any]]]
"""Body of a job: reports its progress to the job and returns its result; an exception becomes the error of the job."""


class Jobs:
    """The jobs of one server since its start."""

    def __init__(self, path: str) -> None:
        """`path`: where its server lists them."""
        self._path = path
        self._jobs: dict[str, Job] = {}
        self._scope = TaskScope("jobs")

    def start(self, what: str, work: Work, owner: str = "") -> Job:
        """Begin a job. Raises TooManyJobs."""
        share, ended = FairShare(MOST_RUNNING), Owned[str]()
        for job in self._jobs.values():
            if job.state == "running":
                share.take(holder_of(job.owner))
            else:
                ended.add(job.owner, job.id)
        if not share.has_room(holder_of(owner)):
            said = share.said(holder_of(owner), "jobs run already")
            raise TooManyJobs(f"{said}; the limit is {MOST_RUNNING}: see GET {self._path}, and come later")
        for _ in range(min(len(self._jobs) + 1 - MOST_KEPT, len(self._jobs) - share.total)):
            old = ended.oldest_of_most()
            ended.remove(self._jobs.pop(old).owner, old)
        job = Job(secrets.token_hex(6), what, owner)
        self._jobs[job.id] = job
        job.task = self._scope.spawn(self._run(job, work), what)
        return job

    def one(self, job_id: str, owner: str | None = None) -> Job:
        """The job with this id, of any owner or of this one. Raises NoSuchJob."""
        job = self._jobs.get(job_id)
        if job is None or owner not in (None, job.owner):
            raise NoSuchJob(f"no job {job_id[:40]!r} of this server since its start; GET {self._path} lists them")
        return job

    @staticmethod
    async def cancel(job: Job) -> None:
        """Stop a job if it runs, and wait until it has stopped."""
        if job.task is not None and job.state == "running":
            job.task.cancel()
            await asyncio.wait((job.task,))

    def as_json(self) -> dict[str, Any]:
        """All that are known, the oldest first."""
        return {"jobs": [job.as_json() for job in self._jobs.values()]}

    async def close(self) -> None:
        await self._scope.close()

    async def _run(self, job: Job, work: Work) -> None:
        log.info("job %s begins: %s", job.id, job.what)
        try:
            job.result = await work(job)
            job.state = "done"
        except asyncio.CancelledError:
            job.state, job.error = "cancelled", "it was cancelled"
            raise
        except Exception as error:  # whatever it is, the job tells it
            job.state, job.error = "failed", str(error) or repr(error)
        finally:
            log.info("job %s (%s): %s %s", job.id, job.what, job.state, job.error)
