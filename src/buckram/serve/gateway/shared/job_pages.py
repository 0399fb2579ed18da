"""Long jobs: each has an id, a progress and an end, and can be cancelled. They are lost when the gateway ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.operations import Ask, Operation
from buckram.serve.operations.jobs import Job, Jobs

JOBS = "/v2/jobs"
_PROGRESS = schema.record(
    done=schema.COUNT, total=schema.or_null(schema.COUNT), unit=schema.TEXT, eta_s=schema.or_null(schema.NUMBER)
)
JOB = schema.record(
    id=schema.TEXT,
    what=schema.TEXT,
    state=schema.one_of("running", "done", "failed", "cancelled"),
    progress=_PROGRESS,
    error=schema.or_null(schema.TEXT),
    result=schema.ANY_OBJECT,
)


class JobPages:
    """The jobs of one gateway."""

    title = "Jobs"

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def operations(self) -> Sequence[Operation]:
        one, many = JOBS + "/{job}", schema.record(jobs=schema.array(JOB))
        return (
            Operation("listJobs", "GET", JOBS, "List the jobs since the start.", "administrator", self._list, many),
            Operation(
                "showJob",
                "GET",
                one,
                "Show the progress of a job; without administration only of one's own.",
                "login",
                self._show,
                JOB,
            ),
            Operation(
                "cancelJob",
                "DELETE",
                one,
                "Stop a job; without administration only one's own.",
                "login",
                self._cancel,
                JOB,
            ),
        )

    async def _list(self, ask: Ask) -> dict[str, Any]:
        return self._jobs.as_json()

    async def _show(self, ask: Ask) -> dict[str, Any]:
        return self._job(ask).as_json()

    async def _cancel(self, ask: Ask) -> dict[str, Any]:
        job = self._job(ask)
        await self._jobs.cancel(job)
        return job.as_json()

    def _job(self, ask: Ask) -> Job:
        """Return the job of the path. Raises NoSuchJob for an unknown one, and for another principal's unless the
        client is an administrator.
        """
        return self._jobs.one(ask.path["job"], None if ask.principal.admin else ask.principal.name)
