"""A file system by Hadoop's rules, as its clients see it: what each call does to a state, and what it answers.

It is written from the rules of Hadoop's FileSystem, apart from `serve/webhdfs`, whose bugs it must find. Three things
are the gateway's own, as its documentation says: a file is there when all of it is; a rename of a file that has been
carried out already is no error; and requests may carry marks of their repetition.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

ABSENT = "FileNotFoundException"
EXISTS = "FileAlreadyExistsException"
FILLED = "PathIsNotEmptyDirectoryException"
INPUT_OUTPUT = "IOException"
NO_DIRECTORY = "ParentNotDirectoryException"
OK, REFUSED = "ok", "refused"
Result = tuple[str, Any]


class File(NamedTuple):
    """A file: a label that names its bytes, the path under which it was created, and the mark of that request."""

    label: str
    created: str
    attempt: str


class Refused(Exception):
    """The call changes nothing; the text is the class of the error."""


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


class FileSystem:
    """A state in the middle of one call. Paths have no slash at either end; the first part is never removed."""

    def __init__(self, state: Any) -> None:
        files, directories = state
        self.files: dict[str, File] = dict(files)
        self.directories: set[str] = set(directories)

    def state(self) -> Hashable:
        return tuple(sorted(self.files.items())), tuple(sorted(self.directories))

    def _above(self, path: str) -> list[str]:
        parts = path.split("/")
        return ["/".join(parts[:depth]) for depth in range(1, len(parts))]

    def _children(self, path: str) -> list[str]:
        return sorted(name for name in (*self.files, *self.directories) if parent_of(name) == path)

    def _is_there(self, path: str) -> bool:
        return path in self.files or path in self.directories

    # -- calls ----------------------------------------------------------------------------------------------

    def create(self, path: str, label: str, overwrite: bool, attempt: str) -> None:
        if path in self.directories:
            raise Refused(EXISTS)
        if any(above in self.files for above in self._above(path)):
            raise Refused(NO_DIRECTORY)
        present = self.files.get(path)
        if present is not None and not overwrite:
            if attempt and present.attempt == attempt:
                return
            raise Refused(EXISTS)
        self.directories |= set(self._above(path))
        self.files[path] = File(label, path, "" if overwrite else attempt)

    def keep(self, path: str) -> None:
        """Make the directory of a file that is about to be created, if nothing is in the way."""
        if path not in self.files and not any(above in self.files for above in self._above(path)):
            self.directories |= {*self._above(path), path}

    def mkdirs(self, path: str) -> bool:
        if path in self.files:
            raise Refused(EXISTS)
        if any(above in self.files for above in self._above(path)):
            raise Refused(NO_DIRECTORY)
        self.directories |= {*self._above(path), path}
        return True

    def delete(self, path: str, recursive: bool, repeated: bool) -> bool:
        if path in self.files:
            del self.files[path]
            return True
        if path not in self.directories:
            return repeated
        if self._children(path) and not recursive:
            raise Refused(FILLED)
        below = f"{path}/"
        self.files = {name: file for name, file in self.files.items() if not name.startswith(below)}
        self.directories = {name for name in self.directories if name != path and not name.startswith(below)}
        return True

    def rename(self, source: str, target: str, overwrite: bool, repeated: bool) -> None:
        """Rename with options, which says why it can not."""
        if target.startswith(f"{source}/"):
            raise Refused(INPUT_OUTPUT)
        if not self._is_there(source):
            if self._was_renamed(source, target) or (repeated and self._is_there(target)):
                return
            raise Refused(ABSENT)
        if source == target or (self._is_there(target) and not overwrite):
            raise Refused(EXISTS)
        above = parent_of(target)
        if not self._is_there(above):
            raise Refused(ABSENT)
        if above in self.files:
            raise Refused(NO_DIRECTORY)
        if self._is_there(target):
            if (target in self.files) is not (source in self.files):
                raise Refused(INPUT_OUTPUT)
            if target in self.directories and self._children(target):
                raise Refused(FILLED)
            self.files.pop(target, None)
            self.directories.discard(target)
        self._move(source, target)

    def move(self, source: str, target: str, repeated: bool) -> bool:
        """Rename without options: into a directory that is there; false where it can not be done."""
        if target.startswith(f"{source}/"):
            return False
        if repeated and not self._is_there(source) and self._is_there(target):
            return True
        if target in self.directories and source != target:
            target = f"{target}/{source.rpartition('/')[2]}"
        if not self._is_there(source):
            return self._was_renamed(source, target)
        if source == target:
            return source in self.files
        if self._is_there(target) or target.startswith(f"{source}/") or parent_of(target) not in self.directories:
            return False
        self._move(source, target)
        return True

    def _was_renamed(self, source: str, target: str) -> bool:
        return target in self.files and self.files[target].created == source

    def _move(self, source: str, target: str) -> None:
        def moved(path: str) -> str:
            return target + path[len(source) :] if path == source or path.startswith(f"{source}/") else path

        self.files = {moved(path): file for path, file in self.files.items()}
        self.directories = {moved(path) for path in self.directories}

    # -- looks ----------------------------------------------------------------------------------------------

    def status(self, path: str) -> str:
        """Return the label of a file, or "/" for a directory."""
        if not self._is_there(path):
            raise Refused(ABSENT)
        return self.files[path].label if path in self.files else "/"

    def read(self, path: str) -> str:
        if path not in self.files:
            raise Refused(ABSENT)
        return self.files[path].label

    def page(self, path: str, after: str, most: int) -> tuple[tuple[str, str], ...]:
        """Return the next entries of a directory, each with what `status` says of it."""
        if path in self.files:
            return (("", self.status(path)),)
        if path not in self.directories:
            raise Refused(ABSENT)
        names = [name for name in self._children(path) if name.rpartition("/")[2] > after]
        return tuple((name.rpartition("/")[2], self.status(name)) for name in names[:most])


def file_step(state: Any, operation: tuple[Any, ...]) -> tuple[Hashable, Result]:
    """Apply a call; return the state afterwards, and what it answers."""
    verb, *given = operation
    files = FileSystem(state)
    try:
        value = getattr(files, verb)(*given)
    except Refused as refused:
        return state, (REFUSED, str(refused))
    return files.state(), (OK, value)


def empty(*directories: str) -> Hashable:
    """Return the state with these directories and nothing in them."""
    return (), tuple(sorted(directories))


__all__ = ["ABSENT", "EXISTS", "OK", "REFUSED", "File", "FileSystem", "Result", "empty", "file_step", "parent_of"]
