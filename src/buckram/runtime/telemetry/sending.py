"""Sending of ended spans to the collector: a bounded list, and a thread that sends its contents.

Not here: the bytes (`runtime/telemetry/otlp.py`) and the connection (`runtime/telemetry/posting.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

from buckram.runtime.telemetry.otlp import Ended, request_of
from buckram.runtime.telemetry.posting import NotPosted
from buckram.seams import Counter

MOST_WAITING = 16_384
"""Appends with their steps, and other spans, about 1 KB each; more are dropped, and counted."""
_AT_ONCE = 1024
"""Maximum spans in one request."""
_log = logging.getLogger("buckram.telemetry")


class Poster(Protocol):
    def __call__(self, body: bytes) -> None:
        """Raises NotPosted."""
        ...


class SpanSender:
    """`put` takes spans from any thread; from `start` to `close` they are sent each `every_s`, or when half of the room
    is taken. A collector that may take them later gets them again then, in their order."""

    def __init__(self, post: Poster, resource: bytes, dropped: Counter, every_s: float) -> None:
        self._post, self._resource, self._dropped, self._every_s = post, resource, dropped, every_s
        self._waiting: deque[Ended] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._fails = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def put(self, ended: Ended) -> None:
        count = len(self._waiting)
        if count < MOST_WAITING:
            self._waiting.append(ended)
            if count == MOST_WAITING // 2:
                self._wake.set()
        else:
            self._dropped.inc(ended.spans)

    def start(self) -> None:
        self._thread.start()

    def send_soon(self) -> None:
        """Wake the sending thread; does not wait for it."""
        self._wake.set()

    def close(self) -> None:
        """Send the remaining spans once and wait for that; later spans are not sent."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        closed = False
        while not closed:
            self._wake.wait(self._every_s)
            self._wake.clear()
            closed = self._closed  # looked at before: what is put until then is sent
            self._send()

    def _send(self) -> None:
        while self._waiting:
            ended = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
            try:
                self._post(request_of(self._resource, ended))
            except Exception as error:  # nothing that is only shown may end what is shown
                again = isinstance(error, NotPosted) and error.again
                if again and len(self._waiting) + len(ended) <= MOST_WAITING:
                    self._waiting.extendleft(reversed(ended))
                else:
                    self._dropped.inc(sum(one.spans for one in ended))
                if not self._fails:  # one line for each time that it begins to fail
                    self._fails = True
                    _log.warning("traces were not sent: %s", error)
                if again:
                    return
            else:
                self._fails = False


__all__ = ["MOST_WAITING", "Poster", "SpanSender"]
