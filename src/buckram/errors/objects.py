"""The typed errors of objects. Each names the object and what to do. Nothing is decided here."""

from __future__ import annotations

from buckram.errors.base import BuckramError, InvalidArgument


class ObjectError(BuckramError):
    """An error of one object, named NAMESPACE/NAME."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"object {name}: {message}")
        self.object = name


class NoSuchObject(ObjectError):
    """The object (or the upload) does not exist. Nothing was changed."""


class ObjectExists(ObjectError):
    """The name is taken, and was to be free. Nothing was changed."""


class ObjectChanged(ObjectError):
    """The object is not of the version that was to be there. Nothing was changed."""


class NameBlocked(ObjectError, InvalidArgument):
    """The name is a directory, or leads through an object. Nothing was changed."""

    def __init__(self, name: str, message: str) -> None:
        ObjectError.__init__(self, name, message)


class DirectoryNotEmpty(ObjectError):
    """A directory was to be deleted, and something is in it. Nothing was changed."""


class UploadIncomplete(ObjectError):
    """An upload was to be completed, and not all of its parts are there. Nothing was changed."""


class TooManyUploads(ObjectError):
    """The namespace has as many open uploads in parts as it may. None was begun."""

    def __init__(self, name: str, limit: int) -> None:
        namespace = name.partition("/")[0]
        super().__init__(
            name,
            f"{limit} uploads in parts are open in namespace {namespace}, the most that it may have (max_uploads): "
            f"complete some, give some up (`buckram object uploads {namespace}` lists them, `buckram object abort` "
            f"gives them up), or raise it: `buckram namespace set {namespace} --set max_uploads={2 * limit}`",
        )
        self.limit = limit


class ObjectDamaged(ObjectError):
    """The bytes of an object do not have its digest, or cannot be read."""


class DataLost(ObjectError):
    """The bytes were given up before they got their name: this process was taken for dead. Put the object again."""

    retryable = True
