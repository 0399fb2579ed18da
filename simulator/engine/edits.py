"""Bugs as edits: a few words in the source of one function are replaced, also for those who imported the function.

Planting fails if the words are not in the source, or more than once: a bug that is not planted would count as one that
nothing catches, or as caught by something else. Words are compared token by token, so comments, line breaks and the
commas and parentheses that come and go with line breaks do not matter.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import keyword
import re
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from simulator.engine.planting import Patches, StaleEdit

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\f]+|\\\n|\#[^\n]*)
    |(?P<line>\n)
    |(?P<text>[rRbBfFuU]{0,2}
        (?:'{3}(?:\\.|[^\\])*?'{3}|"{3}(?:\\.|[^\\])*?"{3}|'(?:\\.|[^\\'\n])*'|"(?:\\.|[^\\"\n])*"))
    |(?P<word>\.?\d(?:[eE][+-]|[\w.])*|\w+)
    |(?P<sign>\.\.\.|\*\*=|//=|>>=|<<=|[-+*/%&|^@=!<>:]=|->|\*\*|//|<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)
_BEFORE_EXPRESSION = ("=", "return", "if", "elif", "while", "assert", "else", ":")
_AFTER_EXPRESSION = ("\n", ":", ")", "]", "}", ",", "")
"""What may stand around parentheses that are there only for the sake of line breaks, and change no precedence."""


class _Token(NamedTuple):
    """A token of a source without comments. A line break is a token, too, and has the next line's indentation."""

    text: str
    indentation: str = ""


def edited(*edits: tuple[str, str, str]) -> Patches:
    """Return a mutant's `apply`. Each edit is ("package.module:Class.method", words, other words).

    The words may span lines. The other words may do so, too, indented as in a function of a module. Calls that began
    before planting do not change.
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


# -- sources as tokens ------------------------------------------------------------------------------------------


def _tokens(source: str) -> list[_Token]:
    """Return the tokens of a source or a part of one, without comments, empty lines and what line breaks bring."""
    found: list[_Token] = []
    depth = 0
    for match in _TOKEN.finditer(source):
        text = match.group()
        if match.lastgroup == "line" and depth <= 0:
            indentation = re.compile(r"[ \t]*").match(source, match.end())
            if found and found[-1].text == "\n":
                found.pop()
            found.append(_Token("\n", indentation.group() if indentation is not None else ""))
        elif match.lastgroup not in ("blank", "line"):
            depth += (text in "([{") - (text in ")]}")
            found.append(_Token(text))
    return _without_fillers(found)


def _without_fillers(tokens: list[_Token]) -> list[_Token]:
    """Leave out what formatters add for line breaks: commas before closing brackets, parentheses around expressions."""
    opened: list[tuple[int, list[str]]] = []
    out: set[int] = set()
    for at, (text, _) in enumerate(tokens):
        if text in ("(", "[", "{"):
            opened.append((at, []))
        elif text in (")", "]", "}") and opened:
            first, signs = opened.pop()
            before, after = (tokens[n].text if 0 <= n < len(tokens) else "" for n in (first - 1, at + 1))
            called = (before.isidentifier() and not keyword.iskeyword(before)) or before in (")", "]")
            if tokens[at - 1].text == "," and (signs.count(",") > 1 or called is (text == ")")):
                out.add(at - 1)  # a tuple of one and an index of one keep theirs
            if (
                text == ")"
                and at > first + 1
                and not signs
                and before in _BEFORE_EXPRESSION
                and after in _AFTER_EXPRESSION
            ):
                out |= {first, at}
        elif opened and text in (",", "for", "yield", ":="):
            opened[-1][1].append(text)
    return [token for at, token in enumerate(tokens) if at not in out]


def _rendered(tokens: list[_Token]) -> str:
    return "".join(f"\n{indentation}" if text == "\n" else f"{text} " for text, indentation in tokens)


def replaced(source: str, words: str, others: str) -> tuple[str, int]:
    """Return the source without comments and with the words replaced, and how often they were in it.

    The source is only meant to be compiled: all tokens are set apart, and each statement is on one line.
    """
    tokens, wanted = _tokens(source), [token.text for token in _tokens(words) if token.text != "\n"]
    solid = [at for at, token in enumerate(tokens) if token.text != "\n"]
    texts = [tokens[at].text for at in solid]
    size = len(wanted)
    found = [at for at in range(len(texts) - size + 1) if wanted and texts[at : at + size] == wanted]
    if len(found) != 1:
        return source, len(found)
    others = others.lstrip() if words[0].isspace() else others
    others = others.rstrip() if words[-1].isspace() else others
    first, last = solid[found[0]], solid[found[0] + size - 1]
    return f"{_rendered(tokens[:first])}{others} {_rendered(tokens[last + 1 :])}", 1


# -- planting ---------------------------------------------------------------------------------------------------


def _compiled(where: str, function: FunctionType, edits: list[tuple[str, str]]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for words, others in edits:
        source, count = replaced(source, words, others)
        if count != 1:
            raise StaleEdit(f"{where}: {words!r} is in it {count} times; it must be there once")
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
    except (StaleEdit, ImportError, SyntaxError) as error:
        return str(error)


__all__ = ["StaleEdit", "edited", "find", "replaced", "stale"]
