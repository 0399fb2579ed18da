"""Keys of an issuer: fetched beside the loop and within bounds, kept while it is away, and asked for when they lack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.support.issuer_kit import AUDIENCE, FakeIssuer, Key, issuing
from tests.support.polling import until

from buckram.core.security.oidc import Issuer
from buckram.core.security.tokens import Revocations, TokenRefused
from buckram.runtime.net.security import issuer_keys as fetching
from buckram.runtime.net.security.issuer_keys import IssuerKeys


@pytest.fixture
def there() -> Iterator[FakeIssuer]:
    with issuing() as found:
        yield found


@asynccontextmanager
async def followed(there: FakeIssuer, known_s: float = 3600.0, again_s: float = 0.0) -> AsyncIterator[IssuerKeys]:
    keys = IssuerKeys(Issuer(there.url, AUDIENCE, known_s=known_s), again_s=again_s, refresh_s=3600.0)
    await keys.start()
    try:
        yield keys
    finally:
        await keys.close()


def counts(keys: IssuerKeys, text: str) -> bool:
    now = time.time()
    try:
        keys.verify(text, now, Revocations(), now)
    except TokenRefused:
        return False
    return True


async def test_a_key_that_was_published_since_is_asked_for_and_one_that_is_gone_counts_no_more(
    there: FakeIssuer,
) -> None:
    async with followed(there) as keys:
        old = there.token()
        assert keys.is_mine(old)
        assert counts(keys, old)
        there.rotate(Key("second", "RS256"))
        new = there.token()
        await keys.meet(new)
        assert counts(keys, new)
        assert not counts(keys, old)


async def test_where_nobody_can_wait_the_next_one_gets_in(there: FakeIssuer) -> None:
    async with followed(there) as keys:
        there.rotate(Key("second", "ES256"))
        text = there.token()
        assert not counts(keys, text)
        await until(lambda: counts(keys, text))


async def test_keys_that_do_not_exist_have_them_fetched_once_in_some_seconds(there: FakeIssuer) -> None:
    async with followed(there, again_s=3600.0) as keys:
        for _ in range(20):
            text = there.token(key=Key("guessed"))
            await keys.meet(text)
            assert not counts(keys, text)
        assert there.asked == 1
    async with followed(there) as keys:
        texts = [there.token(key=Key(f"guessed {number}")) for number in range(20)]
        await asyncio.gather(*(keys.meet(text) for text in texts))
        assert there.asked == 3  # at the start, and once for all who came at the same time


@pytest.mark.parametrize("how", ["down", "slow", "huge", "elsewhere"])
async def test_known_keys_count_while_the_issuer_is_away_and_not_for_ever(
    there: FakeIssuer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FETCH_S", 0.3)
    async with followed(there) as keys:
        text, other = there.token(), there.token(key=Key("second"))
        there.how = how
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        began = asyncio.get_running_loop().time()
        await keys.meet(other)
        assert asyncio.get_running_loop().time() - began < 10
        counting.cancel()
        assert turns > 2 or how != "slow"  # the loop went on meanwhile
        assert counts(keys, text)
        assert not counts(keys, other)
        keys._fetched_at -= 3600.0
        assert not counts(keys, text)
        with pytest.raises(TokenRefused, match="could not be fetched for 3600 s"):
            keys.verify(text, time.time(), Revocations(), time.time())
        there.how = "ok"
        await until(lambda: counts(keys, text))


async def test_it_starts_without_its_issuer(there: FakeIssuer) -> None:
    there.how = "down"
    async with followed(there) as keys:
        assert not counts(keys, there.token())
        there.how = "ok"
        await keys.meet(there.token())
        assert counts(keys, there.token())


async def test_an_issuer_of_another_name_is_not_believed(there: FakeIssuer, caplog: pytest.LogCaptureFixture) -> None:
    there.claimed = "https://evil.example.com"
    async with followed(there) as keys:
        assert not counts(keys, there.token())
        assert "https://evil.example.com" in caplog.text


async def test_an_issuer_that_never_ends_an_answer_holds_a_few_threads_only(
    there: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MOST_THREADS", 0)
    async with followed(there) as keys:
        await keys.meet(there.token())
        assert not counts(keys, there.token())
        assert there.asked == 0
