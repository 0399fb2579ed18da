"""Events of the audit trail: who did what to which object, through which bookie, and whether it was allowed. Pure.

Not here: noting them (`bookie/audit_log.py`), writing and reading them (`audit`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from buckram.errors import InvalidArgument

NAMESPACE, STREAM = "system", "audit"
ACTIONS = (
    "login",
    "create",
    "delete",
    "truncate",
    "fence",
    "recover",
    "policy",
    "quota",
    "grant",
    "revoke",
    "deny",
    "undeny",
    "token",
    "lost",
)
"""`login` is noted where it failed; `lost`: so many events were not kept, because the trail could not be written."""
DONE, REFUSED = "done", "refused"
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`what` names the object, such as `stream shop/orders`; `namespace` is "" where it belongs to none."""

    time_us: int
    principal: str
    action: str
    what: str
    namespace: str = ""
    result: str = DONE
    peer: str = ""
    bookie: str = ""
    detail: str = ""

    def row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def encode(self) -> bytes:
        return json.dumps({name: _short(value) for name, value in self.row().items()}, ensure_ascii=False).encode()

    @classmethod
    def parse(cls, value: bytes) -> AuditEvent:
        """Raises InvalidArgument for what `encode` did not make."""
        try:
            raw = json.loads(value)
            texts = {name: str(raw.get(name, "")) for name in cls.__slots__ if name != "time_us"}
            return cls(int(raw["time_us"]), **texts)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"no event of the audit trail: {error!r}") from None

    def matches(self, *, principal: str = "", action: str = "", namespace: str = "", what: str = "") -> bool:
        """Whether it is of that principal, action and namespace, and about something with that text in its name."""
        return (
            (not principal or self.principal == principal)
            and (not action or self.action == action)
            and (not namespace or self.namespace == namespace)
            and what in self.what
        )


def _short(value: Any) -> Any:
    return value[:_MOST_TEXT] if isinstance(value, str) else value
