"""Tokens: a caller's side of a session. It gives sequences and knows which of them may still be repeated.

A token is written SESSION:SEQUENCE, so that a program can keep it and repeat its command after a crash. Not here: the
replicas' side (`core/machine/sessions.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from buckram.core.machine.sessions import MAX_SEQUENCES
from buckram.errors import InvalidArgument


class Token(NamedTuple):
    """The identity of one command."""

    session: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.session}:{self.sequence}"


def parse_token(text: str) -> Token:
    """Raises InvalidArgument."""
    session, colon, sequence = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not (colon and session.isascii() and session.isdigit() and sequence.isascii() and sequence.isdigit()):
        raise InvalidArgument(f"token {text!r}: needs SESSION:SEQUENCE, as m.token() and CommandUnknown.token give it")
    token = Token(int(session), int(sequence))
    if max(token) >= 2**63:
        raise InvalidArgument(f"token {text!r}: a number is too large")
    return token


class Sequences:
    """The sequences of one session, which was opened in the log as `session`."""

    def __init__(self, session: int) -> None:
        self.session = session
        self._next = 0
        self._wanted: dict[int, None] = {}
        """Sequences that were given out and whose outcome the caller does not have, in order."""

    @property
    def lowest(self) -> int:
        """The lowest sequence whose result the replicas must keep."""
        return next(iter(self._wanted), self._next)

    def take(self) -> Token:
        """The next token. Its result is kept until `done`, or until very many later ones were taken."""
        sequence = self._next
        self._next += 1
        self._wanted[sequence] = None
        if sequence - self.lowest >= MAX_SEQUENCES // 2:
            del self._wanted[self.lowest]
        return Token(self.session, sequence)

    def done(self, token: Token) -> None:
        """The caller has the outcome, or does not want it any more."""
        if token.session == self.session:
            self._wanted.pop(token.sequence, None)


__all__ = ["Sequences", "Token", "parse_token"]
