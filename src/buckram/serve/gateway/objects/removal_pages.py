"""Deleting all objects whose names begin alike, as a job. A directory is one step of it, however much is in it.

Not here: deleting one object or one directory (`object_pages.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from buckram.core.objects.rows import check_object_name
from buckram.core.security.object_names import object_name
from buckram.errors import NoSuchObject
from buckram.serve.gateway.objects.object_calls import OBJECTS, ObjectCalls
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.job_pages import JOB
from buckram.serve.gateway.shared.operations import Ask, Operation, Parameter
from buckram.serve.http.problems import HttpProblem
from buckram.serve.operations.jobs import Job, Jobs
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects

_PAGE = 256
_AT_ONCE = 32
WhyOver = Callable[[], str]
"""Returns why the principal who began a job may not continue it; empty while it may."""


class RemovalPages:
    """Deletion of all objects with a prefix."""

    title = "Objects"

    def __init__(self, calls: ObjectCalls, jobs: Jobs) -> None:
        self._calls, self._jobs = calls, jobs

    def operations(self) -> Sequence[Operation]:
        prefix = Parameter("prefix", "Objects whose names begin so; needs one character at least.")
        return (
            Operation(
                "deleteObjects",
                "DELETE",
                OBJECTS,
                "Begin a job: Delete all objects whose names begin with `prefix`. Needs `delete` on all such names.",
                "login",
                self._delete,
                JOB,
                202,
                parameters=(prefix,),
            ),
        )

    async def _delete(self, ask: Ask) -> dict[str, Any]:
        namespace, prefix = ask.path["namespace"], ask.query["prefix"]
        if not prefix:
            raise bad_request("prefix is missing: needs one character at least, as in ?prefix=logs/2025-")
        check_object_name(f"{prefix}x")
        if not ask.sees(namespace):
            raise ask.unseen(namespace)
        if not _may(ask, prefix):
            raise HttpProblem(
                403,
                "FORBIDDEN",
                f"{ask.principal} has no permission `delete` on all names that begin with "
                f"{object_name(namespace, prefix)} (`buckram acl grant` grants it)",
                value=object_name(namespace, prefix),
            )
        why_token_over = ask.watched()

        def why_over() -> str:
            return why_token_over() or ("" if _may(ask, prefix) else "the permission `delete` was taken back")

        async def work(job: Job) -> Mapping[str, Any]:
            async with self._calls.found(namespace) as objects:
                removal = Removal(job, why_over)
                if objects is not None:
                    await removal.run(objects, prefix)
            return {"namespace": namespace, "prefix": prefix, "deleted": job.done}

        return self._jobs.start(f"delete objects {namespace}/{prefix}*", work, ask.principal.name).as_json()


class Removal:
    """Deletes the objects with a prefix. Objects that are put meanwhile may be deleted as well, or stay."""

    def __init__(self, job: Job, why_over: WhyOver) -> None:
        self._job, self._why_over = job, why_over
        job.progress(0, None, "objects and directories")

    async def run(self, objects: Objects, prefix: str) -> None:
        """Delete all of it, the directories in it each in one step. Raises HttpProblem 403 when it may not go on."""
        directory, slash, first = prefix.rpartition("/")
        if slash and not first:
            await self._remove(objects, directory)
            return
        # The object that is called just so comes before what `entries` has after this name.
        await self._remove(objects, prefix, only_object=True)
        after: ObjectInfo | DirectoryInfo = ObjectInfo(prefix, 0, 0, "", 0, None, {})
        while True:
            try:
                page = await objects.entries(directory, after=after, limit=_PAGE)
            except NoSuchObject:  # the directory went with the last of it
                return
            wanted = [one for one in page if one.name.startswith(prefix)]
            for place in range(0, len(wanted), _AT_ONCE):
                self._check()
                some = wanted[place : place + _AT_ONCE]
                await asyncio.gather(*map(partial(self._remove, objects), (one.name for one in some)))
            if not wanted or len(wanted) < len(page):
                return
            after = page[-1]

    async def _remove(self, objects: Objects, name: str, *, only_object: bool = False) -> None:
        self._check()
        try:
            await (objects.delete(name) if only_object else objects.remove(name, recursive=True))
        except NoSuchObject:
            return
        self._job.progress(self._job.done + 1, None, "objects and directories")

    def _check(self) -> None:
        if why := self._why_over():
            raise HttpProblem(403, "FORBIDDEN", f"{why}: the job ends, and what it has deleted stays deleted")


def _may(ask: Ask, prefix: str) -> bool:
    return any(names.has_all(prefix) for names in ask.allowed.objects(ask.path["namespace"], "delete"))
