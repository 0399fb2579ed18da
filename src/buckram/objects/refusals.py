"""Refusals of the objects' index as typed errors."""

from __future__ import annotations

from buckram.errors import (
    BuckramError,
    CommandRefused,
    DataLost,
    DirectoryNotEmpty,
    InvalidArgument,
    NameBlocked,
    NoSuchObject,
    ObjectChanged,
    ObjectExists,
    UploadIncomplete,
)


def refused(name: str, refusal: CommandRefused) -> BuckramError:
    """The error that a refusal of the index means; `name` is NAMESPACE/NAME."""
    kind, _, text = str(refusal).partition(": ")
    match kind:
        case "exists":
            return ObjectExists(name, f"is there already ({text}) and was to be new; nothing was changed")
        case "changed":
            return ObjectChanged(name, f"is not of the version that was to be there ({text}); nothing was changed")
        case "absent":
            return NoSuchObject(name, text if text.startswith("upload") else f"does not exist ({text})")
        case "blocked":
            return NameBlocked(name, f"{text}; choose another name")
        case "filled":
            return DirectoryNotEmpty(name, f"{text}; delete what is in it first, or all of it with recursive=True")
        case "incomplete":
            return UploadIncomplete(name, f"{text}; put the missing ones and complete it again")
        case "lost":
            return DataLost(name, text)
        case _:
            return InvalidArgument(f"object {name}: {text or kind}")


__all__ = ["refused"]
