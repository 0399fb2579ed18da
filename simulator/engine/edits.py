"""Bugs as edits: a few words in the source of one function are replaced, also for those who imported the function.

Planting fails if the words are not in the source, or more than once: a bug that is not planted would count as one that
nothing catches, or as caught by something else.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any

from simulator.engine.planting import Patches


class StaleEdit(Exception):
    """The source of the function has changed since the bug was written."""


def edited(*edits: tuple[str, str, str]) -> Patches:
    """Return a mutant's `apply`. Each edit is ("package.module:Class.method", words, other words).

    The words may span lines, indented as in a function of a module. Calls that began before planting do not change.
    """
    return lambda: _edit(edits)


@contextmanager
def _edit(edits: tuple[tuple[str, str, str], ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for where in dict.fromkeys(where for where, *_ in edits):
            function = find(where)
            code = _compiled(where, function, [(words, others) for one, words, others in edits if one == where])
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield


def find(where: str) -> FunctionType:
    """Return the plain function of a property, a class method or a context manager."""
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name, None)
    found = found.fget if isinstance(found, property) else found
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        raise StaleEdit(f"{where}: there is no such function")
    return found


def _compiled(where: str, function: FunctionType, edits: list[tuple[str, str]]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for words, others in edits:
        if source.count(words) != 1:
            raise StaleEdit(f"{where}: {words!r} is in it {source.count(words)} times; it must be there once")
        source = source.replace(words, others)
    while source.startswith("@"):
        source = source[source.index("\n") + 1 :]
    names, free = function.__code__.co_freevars, ""
    if names:  # an enclosing function defines these names, so that they stay closure cells
        free = f"    {' = '.join(names)} = None\n"
        source = f"def around():\n{free}{textwrap.indent(source, '    ')}"
    filename = function.__code__.co_filename
    module = compile(source, filename, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    code = _inner(module, function.__code__.co_name)
    if code is None or code.co_freevars != names:
        raise StaleEdit(f"{where}: it cannot be edited, it uses names of a function around it")
    return code


def _inner(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found = constant if constant.co_name == name else _inner(constant, name)
            if found is not None:
                return found
    return None


def stale(patches: Patches) -> str:
    """Return why these patches cannot be planted, or "" if they can."""
    try:
        with patches():
            return ""
    except (StaleEdit, ImportError) as error:
        return str(error)


__all__ = ["StaleEdit", "edited", "find", "stale"]
