"""/api/v1/jobs: the long jobs that requests to this bookie started."""

from __future__ import annotations

from collections.abc import Sequence

from buckram.runtime.net.http_server import Answer, Request, json_answer
from buckram.serve.admin.routing import BookieOperation, RequestError
from buckram.serve.operations.jobs import Job, Jobs
from buckram.serve.operations.registry import ANY

PATH = "/api/v1/jobs"
_ONE = f"{PATH}/{{job:path}}"


class AdminJobPages:
    """Jobs since the start of the bookie."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def operations(self) -> Sequence[BookieOperation]:
        return (
            BookieOperation("GET", PATH, "jobs since the start of the bookie", self._list),
            BookieOperation("GET", _ONE, "one job", self._show),
            BookieOperation("DELETE", _ONE, "cancels it", self._cancel),
            BookieOperation(ANY, _ONE, "", self._refuse),
        )

    async def _list(self, request: Request) -> Answer:
        return json_answer(self._jobs.as_json())

    async def _show(self, request: Request) -> Answer:
        return json_answer(self._job(request).as_json())

    async def _cancel(self, request: Request) -> Answer:
        job = self._job(request)
        await self._jobs.cancel(job)
        return json_answer(job.as_json())

    async def _refuse(self, request: Request) -> Answer:
        self._job(request)
        raise RequestError(405, "Should be GET, or DELETE to cancel the job")

    def _job(self, request: Request) -> Job:
        return self._jobs.one(request.path.removeprefix(f"{PATH}/"))


def started(text: Answer, job: Job) -> Answer:
    """The answer of Apache's bookies, with the job's address beside it."""
    headers = {"Location": f"{PATH}/{job.id}"}
    return Answer(text.content, text.status, text.content_type, headers)
