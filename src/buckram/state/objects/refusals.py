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
    TooManyUploads,
    UploadIncomplete,
)

NO_DIRECTORY = "is no directory"


def refused(name: str, refusal: CommandRefused) -> BuckramError:
    """Return the typed error for a refusal of the index; `name` is NAMESPACE/NAME."""
    kind, _, text = str(refusal).partition(": ")
    match kind:
        case "exists":
            return ObjectExists(
                name, f"is there already ({text}) and was to be new: choose another name, or leave if_absent out"
            )
        case "changed":
            return ObjectChanged(name, f"was not changed: {text}; read it again and decide anew")
        case "absent":
            return NoSuchObject(name, text if text.startswith("upload") else absent(name, text))
        case "blocked":
            return NameBlocked(name, f"{text}; choose another name")
        case "filled":
            return DirectoryNotEmpty(name, f"{text}; delete what is in it first, or all of it with recursive=True")
        case "incomplete":
            return UploadIncomplete(name, f"{text}; put the missing ones and complete it again")
        case "uploads":
            return TooManyUploads(name, int(text))
        case "lost":
            return DataLost(name, text)
        case _:
            return InvalidArgument(f"object {name}: {text or kind}")


def absent(name: str, reason: str = "") -> str:
    """Return the message of NoSuchObject: the reason, and the command that lists the objects."""
    namespace = name.partition("/")[0]
    why = "is a directory and no object" if reason.endswith("is a directory") else "does not exist"
    return f"{why}; `buckram object list {namespace}` shows what is there"
