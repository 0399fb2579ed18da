"""All children of a key, by their names or with their values, page by page. Not here: the meaning of keys."""

from __future__ import annotations

from collections.abc import AsyncIterator

from buckram.seams import KeyStore, Notify
from buckram.types import KeyValue

_PAGE = 1000


async def all_names(
    keys: KeyStore, parent: str, *, watch: Notify | None = None, page: int = _PAGE
) -> AsyncIterator[str]:
    """Yield names in order, read in pages of at most `page` names. The watch fires when a name is added or removed.

    Names that are added or removed meanwhile may be missed. Raises MetadataError; a failure never looks like the end.
    """
    after = ""
    while names := await keys.children(parent, after=after, limit=page, watch=watch):
        for name in names:
            yield name
        after, watch = names[-1], None


async def all_children(keys: KeyStore, parent: str, *, page: int = _PAGE) -> AsyncIterator[tuple[str, KeyValue]]:
    """Yield names and values in the order of names, read in pages. Raises MetadataError.

    Names that are added or removed meanwhile may be missed. A failure raises, and never looks like the end.
    """
    after = ""
    while found := await keys.children_with_values(parent, after=after, limit=page):
        for child in found:
            yield child
        after = found[-1][0]


__all__ = ["all_children", "all_names"]
