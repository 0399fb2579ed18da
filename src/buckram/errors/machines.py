"""The typed errors of replicated state machines. Each names the machine and what to do. Nothing is decided here."""

from __future__ import annotations

from buckram.errors.base import BuckramError, InvalidArgument
from buckram.errors.streams import StreamPurpose
from buckram.types import LedgerId, Offset


class MachineLog(StreamPurpose):
    """The stream is the log of a replicated machine, a database or all objects: only that writes and truncates it."""


class MachineError(BuckramError):
    """An error of one replicated machine, named NAMESPACE/MACHINE."""

    def __init__(self, machine: str, message: str) -> None:
        super().__init__(f"machine {machine}: {message}")
        self.machine = machine


class NotMachineLog(MachineError, InvalidArgument):
    """A stream of this name exists and is not the log of a machine."""

    def __init__(self, machine: str) -> None:
        MachineError.__init__(
            self, machine, "a stream of this name exists and is no machine's log; choose another name"
        )


class NotLeader(MachineError):
    """Another process leads the machine, or none does yet. Nothing was written."""

    retryable = True

    def __init__(self, machine: str, leader: str) -> None:
        who = f"{leader!r} leads it" if leader else "nobody leads it at the moment"
        super().__init__(
            machine, f"this process does not lead it, {who}: execute there, wait (m.lead()), or m.lead(takeover=True)"
        )
        self.leader = leader


class CommandUnknown(MachineError):
    """Leadership ended before the command was acknowledged: it may have been executed, or never be.

    `token`: executing the command again under it, on the present leader, executes it once and gives the first result.
    """

    retryable = True

    def __init__(self, machine: str, token: str, reason: str) -> None:
        super().__init__(
            machine, f"whether the command was executed is not known ({reason}): execute it again with token={token!r}"
        )
        self.token, self.reason = token, reason


class CommandForgotten(MachineError):
    """The token's session or result is not kept any more, or the token was given up. Nothing was executed now."""

    def __init__(self, machine: str, token: str, message: str) -> None:
        super().__init__(machine, f"command {token}: {message}; nothing was executed now")
        self.token = token


class CommandRefused(BuckramError):
    """Raised by apply for a command that the state does not allow, before any change; a result like others."""


class CommandTooLarge(MachineError):
    """The command is over the size limit. Nothing was written."""

    def __init__(self, machine: str, size: int, limit: int) -> None:
        super().__init__(machine, f"a command of {size} bytes is over the limit of {limit} bytes; split it")
        self.size, self.limit = size, limit


class UnknownCommand(BuckramError):
    """Raised by apply for a command that this version of the program does not know: the replica stops before it."""


class ReplicaStopped(MachineError):
    """This replica met a command that it cannot apply, and stopped before it. Other replicas may go on."""

    def __init__(self, machine: str, offset: Offset, message: str) -> None:
        super().__init__(machine, f"this replica stopped at offset {offset}: {message}")
        self.offset = offset


class ReplicaDiverged(ReplicaStopped):
    """The digest of this replica's state is not the leader's: both applied the same commands and differ."""

    def __init__(self, machine: str, offset: Offset, agreed: int | None, own: str, leader: str) -> None:
        since = "no earlier digest was compared" if agreed is None else f"at offset {agreed} they were equal"
        super().__init__(
            machine,
            offset,
            f"its state differs from the leader's (digest {own}, the leader's is {leader}); {since}. apply() or "
            "snapshot() is not deterministic, or memory is bad. Close it and open it again to begin from a snapshot",
        )
        self.agreed, self.own_digest, self.leader_digest = agreed, own, leader


class SnapshotDamaged(MachineError):
    """A snapshot does not have the digest that it was published with, or cannot be read."""

    def __init__(self, machine: str, offset: Offset, ledger_id: LedgerId, message: str) -> None:
        super().__init__(machine, f"the snapshot at offset {offset} (ledger {ledger_id}) is damaged: {message}")
        self.offset, self.ledger_id = offset, ledger_id


class SnapshotFailed(MachineError):
    """The class's snapshot() raised an error. Nothing was published; the log is kept."""

    def __init__(self, machine: str, error: str) -> None:
        super().__init__(machine, f"snapshot() failed with {error}; correct it, the log grows until then")


class StateLost(MachineError):
    """No snapshot of those published can be read, and the log before them is gone."""


class TooStale(MachineError):
    """A read could not be served as fresh as it required."""

    retryable = True

    def __init__(self, machine: str, age_s: float | None, wanted_s: float | None, reason: str = "") -> None:
        """Make the error. `wanted_s` None: the read allows any age, and the replica has no state that ever was the
        newest one.
        """
        age = "its age is not known" if age_s is None else f"its state is {age_s:.3f} s old"
        if wanted_s is None:
            text = "this replica has not reached the end of the log that was there when it was opened"
            cure = "try again, or ask another replica"
        else:
            text, cure = f"{age}, the read allows {wanted_s:g} s", "try again, or allow more"
        super().__init__(machine, f"{text}{f' ({reason})' if reason else ''}; {cure}")
        self.age_s, self.wanted_s = age_s, wanted_s

    @classmethod
    def behind(cls, machine: str, reason: str) -> TooStale:
        """Return the error of a read at an offset that this replica has not reached."""
        found = cls(machine, None, None)
        MachineError.__init__(found, machine, f"{reason}; try again, or ask with an offset that the leader gave")
        return found
