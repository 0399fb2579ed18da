"""Which stories there are, how often a life gets each, and which lives it suits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan

Tell = Callable[["Faults"], Awaitable[None]]
Fits = Callable[["Plan"], bool]
Suit = Callable[["Plan"], None]
LEDGERS, STREAMS = "ledgers", "streams"


def _any_life(plan: Plan) -> bool:
    return True


def _as_it_is(plan: Plan) -> None:
    """The plan stays."""


def crashes_only(plan: Plan) -> bool:
    """Nobody lies, and no rule of racks or late syncs says that one bookie's loss may cost an entry."""
    return not plan.liar and not plan.racks and not plan.deferred


@dataclass(frozen=True, slots=True)
class Story:
    """`fits` says whether a plan may get it, `suit` changes a plan that got it. `lives`: of ledgers, of streams."""

    name: str
    weight: float
    tell: Tell
    fits: Fits = _any_life
    suit: Suit = _as_it_is
    damages: bool = False
    """One bookie loses what it was given. A life gets one such story at most, and only where Qa is 2 or more."""
    lives: tuple[str, ...] = (LEDGERS, STREAMS)
    apart: bool = False
    """Drawn by itself: `weight` of a hundred lives that it fits. Otherwise a weight among the common stories."""


_STORIES: dict[str, Story] = {}


def _add(story: Story) -> None:
    if story.name in _STORIES:
        raise ValueError(f"there are two stories named {story.name!r}; give the second another name")
    _STORIES[story.name] = story


def register(
    name: str,
    weight: float,
    story: Tell,
    *,
    fits: Fits = _any_life,
    suit: Suit = _as_it_is,
    damages: bool = False,
    lives: Iterable[str] = (LEDGERS, STREAMS),
) -> None:
    """Add a story. Of a hundred lives that it fits, about `weight` get it: drawn by itself, so that a new story changes
    nothing else of a life."""
    _add(Story(name, weight, story, fits, suit, damages, tuple(lives), apart=True))


def common(
    name: str,
    weight: float,
    story: Tell,
    *,
    suit: Suit = _as_it_is,
    damages: bool = False,
    lives: Iterable[str] = (LEDGERS, STREAMS),
) -> None:
    """Add a story to those of which each life gets one to four; `weight` is beside those of the others."""
    _add(Story(name, weight, story, suit=suit, damages=damages, lives=tuple(lives)))


def stories() -> dict[str, Story]:
    """All that were registered, in the order in which it happened."""
    return _STORIES


def of_lives(lives: str, *, apart: bool) -> list[Story]:
    return [story for story in _STORIES.values() if lives in story.lives and story.apart is apart]


def names(lives: str) -> list[str]:
    return [story.name for story in _STORIES.values() if lives in story.lives]
