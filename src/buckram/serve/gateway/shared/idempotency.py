"""Repeats: a change that is repeated with the same Idempotency-Key is executed once, with the same answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from buckram.core.tenants.fair_share import Owned
from buckram.runtime.process.tasks import TaskScope
from buckram.serve.gateway.shared.error_answers import OUTCOME, bad_request
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.problems import HttpProblem

HEADER = "idempotency-key"
REPEATED = "Idempotency-Repeated"
_MOST_KEY_BYTES = 200


class Fingerprint:
    """Digest that tells two requests apart: method, path with query, further parts, and the body, which may come
    later.
    """

    def __init__(self, method: str, target: str, body: bytes = b"") -> None:
        self._digest = hashlib.sha256(f"{method} {target}\n".encode())
        self.add(body)

    def add(self, more: bytes) -> None:
        """Add a part of the request."""
        self._digest.update(more)

    def value(self) -> bytes:
        """Return the digest of all parts so far."""
        return self._digest.digest()


@dataclass(slots=True)
class _Kept:
    fingerprint: Fingerprint
    task: asyncio.Task[Response]
    began: float


class Repeats:
    """Repeats of one gateway. A change goes on when its client disconnects, since the client may repeat the request."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._owned: Owned[tuple[str, str]] = Owned()
        """Keys by principal: beyond the limit, the principal with most keys loses the oldest of his."""
        self._scope = TaskScope("changes")
        self._loop = asyncio.get_running_loop()

    async def once(
        self,
        who: str,
        key: str,
        fingerprint: Fingerprint,
        work: Coroutine[Any, Any, Response],
        rest: Callable[[], Awaitable[None]] | None = None,
    ) -> Response:
        """Return the answer of `work`, or that of the first request which `who` sent with this key.

        Answers of success are kept, and errors with an unknown outcome. Other errors changed nothing, or may be
        retried. `rest`: given if `work` reads the body and adds it to the fingerprint; it reads the body of a
        repetition. Raises HttpProblem 422 if the key came with another request before, and 503 if that one ended just
        now without an answer to keep.
        """
        try:
            if not 0 < len(key.encode()) <= _MOST_KEY_BYTES:
                raise bad_request(f"Idempotency-Key has {len(key)} characters: needs 1 to {_MOST_KEY_BYTES} bytes")
            found = self._find((who, key))
            if found is not None and rest is not None:
                await rest()
                await asyncio.wait((found.task,))
            if found is not None and found.fingerprint.value() != fingerprint.value():
                if rest is not None and self._kept.get((who, key)) is not found:
                    raise _unfinished(key)  # its body may not have come as a whole, so nothing can be compared
                raise HttpProblem(
                    422,
                    "IDEMPOTENCY_KEY_REUSED",
                    f"Idempotency-Key {key!r} came with another request before: choose a new key for a new request",
                )
        except BaseException:
            work.close()
            raise
        if found is not None:
            work.close()
            answer = await asyncio.shield(found.task)
            headers = {**dict(answer.headers), REPEATED: "true"}
            return Response(bytes(answer.body), answer.status_code, headers)
        kept = _Kept(fingerprint, self._scope.spawn(work, "change"), self._loop.time())
        self._kept[who, key] = kept
        self._owned.add(who, (who, key))
        kept.task.add_done_callback(lambda task: self._done((who, key), kept, task))
        return await asyncio.shield(kept.task)

    async def close(self) -> None:
        """Cancel changes that are still running."""
        await self._scope.close()

    def _find(self, at: tuple[str, str]) -> _Kept | None:
        oldest = self._loop.time() - self._limits.repeats_s
        while self._kept and self._kept[first := next(iter(self._kept))].began < oldest:
            self._forget(first)
        return self._kept.get(at)

    def _done(self, at: tuple[str, str], kept: _Kept, task: asyncio.Task[Response]) -> None:
        fits = False
        if not task.cancelled() and task.exception() is None:
            answer = task.result()
            counts = answer.status_code < 300 or answer.headers.get(OUTCOME) == "unknown"
            fits = counts and len(answer.body) <= self._limits.repeat_bytes
        if not fits and self._kept.get(at) is kept:
            self._forget(at)
        while len(self._kept) > self._limits.repeats:
            self._forget(self._owned.oldest_of_most())

    def _forget(self, at: tuple[str, str]) -> None:
        del self._kept[at]
        self._owned.remove(at[0], at)


def _unfinished(key: str) -> HttpProblem:
    return HttpProblem(
        503,
        "REQUEST_UNFINISHED",
        f"the request that came with Idempotency-Key {key!r} before has ended, perhaps before its body was whole, and "
        "this one had to wait for it: send it again",
        headers={"Retry-After": "1"},
        retryable=True,
    )
