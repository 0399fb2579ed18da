"""Tokens: a caller's side of a session. It issues sequences and knows which of them may still be repeated.

A token is written LOG:SESSION:SEQUENCE, so that a program can keep it and repeat its command after a crash; LOG is the
unique id of the machine's log, because another machine of the same name has sessions of the same numbers. Not here: the
replicas' side (`core/machine/sessions.py`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from buckram.core.machine.sessions import MAX_SEQUENCES
from buckram.errors import InvalidArgument

_FORM = re.compile(r"([0-9a-f]{16}):([0-9]{1,19}):([0-9]{1,19})", re.ASCII)


class Token(NamedTuple):
    """The identity of one command of one machine."""

    session: int
    sequence: int

    def text(self, log: str) -> str:
        """Return the token as text, for a program to keep; `log` is the uid of the machine's log."""
        return f"{log}:{self.session}:{self.sequence}"


def parse_token(text: str) -> tuple[str, Token]:
    """Return the uid of the log and the token. Raises InvalidArgument."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    token = Token(int(found[2]), int(found[3])) if found is not None else None
    if found is None or token is None or max(token) >= 2**63:
        raise InvalidArgument(f"token {text!r}: needs LOG:SESSION:SEQUENCE, as m.token() and CommandUnknown give it")
    return found[1], token


class Sequences:
    """The sequences of one session, which was opened in the log as `session`."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.lowest = 0
        """Lowest sequence whose result the replicas must keep."""
        self._next = 0
        self._wanted: dict[int, None] = {}
        """Sequences that were issued and whose outcome the caller does not have, in order."""

    def take(self) -> Token:
        """Return the next token. Its result is kept until `done`, or until very many later ones were taken."""
        sequence = self._next
        self._next = sequence + 1
        self._wanted[sequence] = None
        if sequence - self.lowest >= MAX_SEQUENCES // 2:
            self._end(self.lowest)
        return Token(self.session, sequence)

    def done(self, token: Token) -> None:
        """Note that the caller has the outcome, or does not want it any more."""
        session, sequence = token
        if session == self.session:
            self._end(sequence)

    def _end(self, sequence: int) -> None:
        self._wanted.pop(sequence, None)
        if sequence == self.lowest:
            # The dictionary passes over all that left its front, so it is asked only when the lowest one has gone.
            self.lowest = next(iter(self._wanted), self._next)


__all__ = ["Sequences", "Token", "parse_token"]
