"""HTTP server of `buckram bookie run --http`: the paths of Apache's bookies, jobs, and the status pages.

It runs in a thread beside the bookie (`bookie/pages/http_thread.py`). Where peers of the bookie have to log in, so does
whoever wants more than the status pages: with an administrator's token, as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from buckram.bookie.pages.status_pages import SERVED, bearer_of
from buckram.bookie.run import Site
from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.core.security.tokens import TokenRefused
from buckram.errors import MetadataError
from buckram.runtime.net.http_server import Answer, Handler, Request, text_answer
from buckram.serve.admin.bookie_pages import BookiePages
from buckram.serve.admin.cluster_link import TOKEN, ClusterLink
from buckram.serve.admin.cluster_pages import AdminClusterPages
from buckram.serve.admin.job_pages import PATH as JOBS
from buckram.serve.admin.job_pages import AdminJobPages
from buckram.serve.admin.ledger_pages import AdminLedgerPages
from buckram.serve.admin.routing import RequestError, Router
from buckram.serve.operations.jobs import Jobs

OPEN = (*SERVED, "/", "/api/v1/bookie/is_ready")
"""Paths served without a login here: probes, and the status pages, which check tokens themselves."""


@asynccontextmanager
async def admin_pages(site: Site) -> AsyncIterator[Handler]:
    """The handler of all pages, while the context lasts."""
    link, jobs = ClusterLink(site.metadata_uri, site.settings["tls"]), Jobs(JOBS)
    groups = BookiePages(site, link, jobs), AdminLedgerPages(link), AdminClusterPages(link, jobs), AdminJobPages(jobs)
    pages = _Pages(site, Router(site.status, *groups), link)
    try:
        yield pages.answer
    finally:
        await jobs.close()
        await link.close()


class _Pages:
    def __init__(self, site: Site, router: Router, link: ClusterLink) -> None:
        self._site, self._router, self._link = site, router, link

    async def answer(self, request: Request) -> Answer:
        try:
            if self._site.guarded and not (request.method == "GET" and request.path in OPEN):
                await self._admit(request)
            with self._link.request():
                return await self._router(request)
        except RequestError as error:
            return text_answer(str(error), error.status)
        except MetadataError as error:
            return text_answer(f"the metadata store: {error}", 503)

    async def _admit(self, request: Request) -> None:
        """Raises Wrong: 401 without a good token, 403 for one that is no administrator's. The audit trail has it."""
        who = ANONYMOUS
        try:
            who = await self._principal(request)
            if not who.admin:
                raise RequestError(403, "the token is no administrator's: `buckram token create` makes one")
        except RequestError as wrong:
            name, why = who, str(wrong)
            await self._site.bookie.ask(lambda bookie: bookie.page_refused(name, request.path, why))
            raise
        TOKEN.set(bearer_of(request))

    async def _principal(self, request: Request) -> Principal:
        """Return the principal of the request's bearer token. Raises Wrong (401) if it has none, or the token is
        refused.
        """
        token = bearer_of(request)
        if not token:
            raise RequestError(401, "this bookie asks for logins: send Authorization: Bearer TOKEN of an administrator")
        try:
            principal = await self._site.bookie.ask(lambda bookie: bookie.principal_of(token.encode()))
        except TokenRefused as error:
            raise RequestError(401, f"the token is refused: {error}") from None
        return principal
