"""Long jobs: each has an id, a progress and an end, and can be cancelled. They are lost when the gateway ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buckram.serve.admin.jobs import Job, Jobs, Work
from buckram.serve.admin.routing import RequestError
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.operations import Ask, Operation
from buckram.serve.http.problems import HttpProblem

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

    def __init__(self) -> None:
        self._jobs = Jobs(JOBS)

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

    def start(self, what: str, work: Work, owner: str = "") -> dict[str, Any]:
        """Begin a job and return its JSON. Raises HttpProblem 503 while too many run.

        `owner`: the name of the principal who may see and cancel it, as administrators may.
        """
        try:
            return self._jobs.start(what, work, owner).as_json()
        except RequestError as wrong:
            raise _problem(wrong) from None

    async def close(self) -> None:
        """Cancel running jobs."""
        await self._jobs.close()

    async def _list(self, ask: Ask) -> dict[str, Any]:
        return {"jobs": [job.as_json() for job in self._jobs.all()]}

    async def _show(self, ask: Ask) -> dict[str, Any]:
        return self._job(ask).as_json()

    async def _cancel(self, ask: Ask) -> dict[str, Any]:
        job = self._job(ask)
        await self._jobs.cancel(job)
        return job.as_json()

    def _job(self, ask: Ask) -> Job:
        """Return the job of the path. Raises HttpProblem 404 for an unknown one, and for another principal's unless
        the client is an administrator.
        """
        owner = None if ask.principal.admin else ask.principal.name
        try:
            return self._jobs.one(ask.path["job"], owner)
        except RequestError as wrong:
            raise _problem(wrong) from None


def _problem(wrong: RequestError) -> HttpProblem:
    code = "NO_SUCH_JOB" if wrong.status == 404 else "TOO_MANY_JOBS"
    return HttpProblem(wrong.status, code, str(wrong))
