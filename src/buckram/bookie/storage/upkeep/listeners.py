"""The callbacks of those who follow the state of a store: its room, its backpressure, its failure."""

from __future__ import annotations

from typing import Protocol


class StateListener(Protocol):
    """Called, on the loop's thread, after a property of the store changed; it reads the property itself."""

    def __call__(self) -> None: ...


class FailureListener(Protocol):
    """Called once, on the loop's thread, with the error that ended the log."""

    def __call__(self, error: BaseException, /) -> None: ...


class StoreListeners:
    """Lists of callbacks, called in the order in which they were added."""

    def __init__(self) -> None:
        self.on_space: list[StateListener] = []
        self.on_backpressure_end: list[StateListener] = []
        self.on_failure: list[FailureListener] = []

    def space_changed(self) -> None:
        """Report that the store became writable or read-only."""
        for listener in self.on_space:
            listener()

    def backpressure_ended(self) -> None:
        """Report that writers need not wait any more."""
        for listener in self.on_backpressure_end:
            listener()

    def log_failed(self, error: OSError) -> None:
        """Report that the log takes nothing more."""
        for listener in self.on_failure:
            listener(error)
