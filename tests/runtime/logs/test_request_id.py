"""Lines know the request that they belong to."""

from __future__ import annotations

import asyncio
import threading

from buckram.runtime.logs.request_id import REQUEST, about_request


def test_an_id_of_the_sender_is_kept_where_it_is_a_word() -> None:
    with about_request("abc-1") as name:
        assert name == REQUEST.get() == "abc-1"
    assert REQUEST.get() == ""


def test_others_get_one_of_our_own() -> None:
    for bad in ("", "two words", "x" * 65, "a\nb"):
        with about_request(bad) as name:
            assert name.startswith("http-")
    with about_request() as one, about_request() as other:
        assert one != other


async def test_it_follows_a_question_to_another_loop() -> None:
    """As from the thread that serves HTTP to the bookie's loop."""

    async def asked() -> str:
        return REQUEST.get()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with about_request("abc-2"):
            assert await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked(), loop)) == "abc-2"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
