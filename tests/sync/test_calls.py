"""The calls without async are those of the async handles, and the script that writes them is exact."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scripts import generate_sync
from scripts.generate_sync import Face, Text

MOST = 7


class Shelf:
    """An async handle."""

    @property
    def size(self) -> int:
        """How many there are."""
        return 0

    async def list(self, *, limit: int = MOST) -> list[str]:
        """Return the names."""
        return []

    async def put(self, name: str, data: bytes = b"", *, again: bool = False, **marks: Any) -> None:
        """Put one.

        Whole or not at all.
        """

    def each(self, first: int = 0) -> AsyncIterator[bytes]:
        """`async for one in shelf.each()`."""
        raise NotImplementedError

    async def seen(self) -> bool:
        """See `await`."""
        return True


WRITTEN = '''class ShelfCalls(NamedFace[_Shelf]):
    """Calls of test_calls.Shelf."""

    @property
    def size(self) -> int:
        """How many there are."""
        return self._handle.size

    def list(self, *, limit: int = 7) -> builtins.list[str]:
        """Return the names."""
        return self._thread.run(lambda: self._handle.list(limit=limit))

    def put(self, name: str, data: bytes = b"", *, again: bool = False, **marks: Any) -> None:
        """Put one.

        Whole or not at all.
        """
        self._thread.run(lambda: self._handle.put(name, data, again=again, **marks))

    def each(self, first: int = 0) -> Iterator[bytes]:
        """`for one in shelf.each()`."""
        return items(self._thread, lambda: self._handle.each(first))
'''


def test_calls_have_the_signature_and_the_docstring_of_the_async_ones() -> None:
    text = Text([Face(Shelf, ("size", "list", "put", "each"))]).whole("Calls.")
    assert text.startswith(generate_sync.FIRST)
    assert "import builtins\n" in text
    assert text[text.index("class ") :] == WRITTEN.replace("test_calls.", f"{__name__}.")


def test_a_docstring_that_speaks_of_async_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Shelf\.seen: its docstring speaks of async"):
        Text([Face(Shelf, ("seen",))])


@pytest.mark.parametrize("name", generate_sync.MODULES)
def test_a_module_is_current(name: str) -> None:
    what, faces = generate_sync.MODULES[name]
    assert (generate_sync.FOLDER / f"{name}.py").read_text() == Text(faces).whole(what)


@pytest.mark.parametrize("face", [face for _, faces in generate_sync.MODULES.values() for face in faces])
def test_a_class_without_async_has_every_generated_call(face: Face) -> None:
    from buckram import sync

    blocking = getattr(sync, face.source.__name__)
    for name in face.names:
        here, there = (inspect.getattr_static(cls, name) for cls in (blocking, face.source))
        if not isinstance(here, property):
            assert list(inspect.signature(here).parameters) == list(inspect.signature(there).parameters)
