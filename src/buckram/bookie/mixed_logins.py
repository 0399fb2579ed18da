"""The check for bookies of one cluster with and without logins. A bookie without logins gives away most of what one
with logins protects, because it holds copies of the same entries. Such a cluster is refused at the start, unless a
setting allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from buckram.core.security.acl import LOGIN_PROPERTY
from buckram.errors import ConfigError
from buckram.types import BookieId, BookieInfo


def check_others(own: BookieId, properties: Mapping[str, str], others: Iterable[BookieInfo]) -> None:
    """Raise ConfigError if another registered bookie asks for logins and this one does not, or the other way round."""
    asks = LOGIN_PROPERTY in properties
    different = [one.bookie_id for one in others if one.bookie_id != own and (LOGIN_PROPERTY in one.properties) != asks]
    if not different:
        return
    names = ", ".join(sorted(different)[:3]) + (f" and {len(different) - 3} more" if len(different) > 3 else "")
    mine, theirs = ("asks for a login", "nobody is asked by") if asks else ("asks nobody", "a login is asked for by")
    raise ConfigError(
        f"bookie {own} {mine} ([auth] logins), and {theirs} {names}: who is kept out by the one reads the same entries "
        "at the other. Give all bookies of a cluster the same logins; while that is being rolled out, one bookie after "
        "the other, set [auth] mixed = 'allowed' on each"
    )
