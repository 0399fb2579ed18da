"""The keys of an OIDC issuer, fetched periodically, and at once when a token names an unknown one.

A thread fetches, bounded in time and bytes, and never the loop. While the issuer is away, the known keys stay valid for
a time. Not here: the contents of tokens and documents (`core/security/oidc.py`).
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import time
from collections.abc import Callable, Mapping
from typing import IO, Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

from buckram.core.security.oidc import (
    MOST_DOCUMENT_BYTES,
    Issuer,
    IssuerRefused,
    UnknownKey,
    is_of,
    key_id_of,
    keys_of,
    keys_url_of,
    url_refusal,
    verify,
)
from buckram.core.security.tokens import Revocations, Token, TokenRefused
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import THREADS, StartedThread

FETCH_S = 5.0
"""Deadline of a whole fetch, seconds."""
REFRESH_S = 60.0
"""Seconds between two fetches of the keys: an issuer publishes a new key some time before it signs with it."""
AGAIN_S = 5.0
"""Minimum seconds between two fetches that tokens with unknown keys cause."""
MOST_THREADS = 3
"""Maximum fetching threads: an issuer that answers byte by byte blocks no more than these."""
_PIECE = 16 * 1024
_log = logging.getLogger("buckram.security")
Keys = Mapping[str, tuple[Any, str]]


class IssuerKeys:
    """Keys of one issuer, between `start` and `close`. `again_s` replaces AGAIN_S."""

    def __init__(self, issuer: Issuer, *, again_s: float = AGAIN_S, refresh_s: float = REFRESH_S) -> None:
        self.issuer = issuer
        self._again_s, self._refresh_s = again_s, min(refresh_s, issuer.known_s / 2)
        self._keys: Keys = {}
        self._fetched_at = self._began_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._threads: list[StartedThread] = []
        self._scope = TaskScope("issuer")

    async def start(self) -> None:
        """Fetch the keys, or go on without after FETCH_S, and fetch them from then on."""
        await self._fetch()
        self._scope.keep(self._refresh, "refresh")

    async def close(self) -> None:
        await self._scope.close()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self._fetch()

    def _fetch(self) -> asyncio.Task[None]:
        """Return the running fetch, or start one: there is one fetch at a time."""
        if self._fetching is None or self._fetching.done():
            self._began_at = _now()
            self._fetching = self._scope.spawn(self._fetch_once(), "fetch")
        return self._fetching

    async def _fetch_once(self) -> None:
        try:
            self._keys = await self._beside(lambda: _fetched(self.issuer, time.monotonic() + FETCH_S))
        except (OSError, http.client.HTTPException, IssuerRefused, ValueError, TimeoutError) as error:
            _log.warning(
                "the keys of issuer %s stay as they were, %d of them: %s", self.issuer.issuer, len(self._keys), error
            )
        else:
            self._fetched_at = _now()

    async def _beside(self, work: Callable[[], Keys]) -> Keys:
        """Return the result of `work`, run in a daemon thread that does not delay the end of the program. Raises
        TimeoutError if MOST_THREADS are still running."""
        self._threads = [one for one in self._threads if one.is_alive()]
        if len(self._threads) >= MOST_THREADS:
            raise TimeoutError(f"{MOST_THREADS} fetches have not ended yet")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Keys] = loop.create_future()

        def tell(found: Keys | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif found is not None:
                done.set_result(found)

        def run() -> None:
            found: Keys | None = None
            failed: BaseException | None = None
            try:
                found = work()
            except BaseException as error:
                failed = error
            try:
                loop.call_soon_threadsafe(tell, found, failed)
            except RuntimeError:
                return  # The loop is closed: nobody wants them any more.

        self._threads.append(THREADS.start(run, "issuer's keys"))
        async with asyncio.timeout(FETCH_S + 1.0):
            return await done

    @property
    def keys(self) -> Keys:
        """Return the valid keys; none if the last successful fetch is older than the issuer's `known_s`."""
        return self._keys if _now() - self._fetched_at < self.issuer.known_s else {}

    def is_mine(self, text: str | bytes) -> bool:
        """Return whether a token names the issuer as its own."""
        return is_of(text, self.issuer)

    def verify(self, text: str | bytes, now_s: float, revoked: Revocations, earliest_s: float) -> Token:
        """Verify a token like `core/security/oidc.py:verify`. An unknown key starts a fetch, for which `meet` waits.
        Raises TokenRefused."""
        try:
            return verify(text, self.issuer, self.keys, now_s, revoked, earliest_s=earliest_s)
        except UnknownKey:
            self._ask_again()
            if self._keys and not self.keys:
                raise TokenRefused(
                    f"the keys of {self.issuer.issuer} could not be fetched for {self.issuer.known_s:g} s"
                ) from None
            raise

    def _ask_again(self) -> asyncio.Task[None] | None:
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        return self._fetch() if _now() - self._began_at >= self._again_s else None

    async def meet(self, text: str | bytes) -> None:
        """Wait for the keys where a token is of the issuer and names one that is not known, and may be by now."""
        if self.is_mine(text) and key_id_of(text) not in self.keys:
            fetching = self._ask_again()
            if fetching is not None:
                await asyncio.wait([fetching])


def _now() -> float:
    return asyncio.get_running_loop().time()


class _NoRedirect(HTTPRedirectHandler):
    """Another address would not be the one that was judged."""

    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _fetched(issuer: Issuer, until: float) -> Keys:
    """Fetch the keys of an issuer; blocking, so call it in a thread. Raises OSError, IssuerRefused."""
    url = issuer.jwks or keys_url_of(_document(issuer.discovery, until), issuer)
    return keys_of(_document(url, until))


def _document(url: str, until: float) -> bytes:
    if why := url_refusal(url):
        raise IssuerRefused(f"{url}: {why}")
    request = Request(url, headers={"User-Agent": "buckram", "Accept": "application/json"})
    with build_opener(_NoRedirect).open(request, timeout=_left(url, until)) as answer:
        found = b""
        while piece := answer.read1(_PIECE):
            found += piece
            if len(found) > MOST_DOCUMENT_BYTES:
                raise IssuerRefused(f"{url}: more than {MOST_DOCUMENT_BYTES} bytes")
            _left(url, until)
        return found


def _left(url: str, until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"{url}: no whole answer within {FETCH_S:g} s")
    return left
