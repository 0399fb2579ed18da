"""Move rooms of the source tree: `python scripts/move_rooms.py GROUP`, with the table scripts/rooms.toml.

For one group it moves files and their tests with `git mv`, rewrites all that names them (imports, dotted names, paths
in pages and comments, tests/modules.toml, tests/budget.toml, depths of `parents[N]`), sets the contracts of imports,
makes the edits that the table lists, sorts imports, formats, and writes generated pages again. It commits nothing. What
it could not do is printed as `BY HAND` and makes the exit code 1; everything else is done all the same. Run it on a
tree without changes; the same tree gives the same result.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

TABLE = Path("scripts/rooms.toml")
OWN = ("scripts/move_rooms.py", "scripts/rooms.toml")
SOURCE, TESTS = "src/buckram/", "tests/"
TEXT = {".py", ".pyi", ".md", ".toml", ".json", ".yml", ".yaml", ".js", ".mjs", ".go", ".java", ".cfg", ".ini", ".in",
        ".txt", ".html", ".css", ".c", ".proto", ".xml", ".tpl", ".test", ""}  # fmt: skip
DOTTED = re.compile(r"(?<![\w.])(?P<before>-m(?: |\", \"|', '))?(?P<name>(?:buckram|tests)(?:\.[A-Za-z_]\w*)+)")
PATH = re.compile(r"(?<![\w./-])(?P<up>(?:\.\./)*)(?P<path>(?:[\w.-]+/)+[\w.-]*)")
DEPTH = re.compile(r"(?P<head>Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(?P<number>\d+)(?=\])")
MADE_UP = ("tests/project/test_check.py", "tests/project/test_modules_have_tests.py")
"""Tests whose paths are examples, beside tables that are examples."""
KEPT = "buckram_kept"
"""Stands for `buckram` in an import that stays, while the others are rewritten."""
WIDTH = 120


@dataclass
class Group:
    """What the table has of one group. Paths are from the root of the checkout."""

    moves: dict[str, str]
    contracts: dict[str, dict[str, Any]] = field(default_factory=dict)
    edits: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    budgets: dict[str, str] = field(default_factory=dict)
    exact: list[str] = field(default_factory=list)
    """Packages whose bare dotted name is rewritten everywhere: it is no name of a logger, a stream or a format."""
    keep: list[str] = field(default_factory=list)
    """Files that stay where they are although their folder moves."""
    drop: list[str] = field(default_factory=list)
    """Files that go."""


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    if sys.argv[1] not in table:
        print(f"no group {sys.argv[1]!r}; known: {', '.join(table)}", file=sys.stderr)
        return 2
    group = Group(**table[sys.argv[1]])
    faults = Run(group).carry_out()
    for fault in faults:
        print(f"BY HAND: {fault}")
    return 1 if faults else 0


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def tracked() -> list[str]:
    return [name for name in git("ls-files").splitlines() if name not in OWN and Path(name).is_file()]


def dotted(path: str) -> str:
    """The module of a path, which may be a folder: `src/buckram/net/tcp.py` and `tests/net/kit` are modules."""
    name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


class Run:
    """One group, carried out."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.faults: list[str] = []
        self.old = set(tracked())
        self.folders = {parent.as_posix() for name in self.old for parent in PurePosixPath(name).parents}
        self.moves = dict(group.moves)
        for old, new in group.moves.items():
            mirror = TESTS + old.removeprefix(SOURCE)
            if old.startswith(SOURCE) and mirror in self.folders and mirror not in self.moves:
                self.moves[mirror] = TESTS + new.removeprefix(SOURCE)
        self.modules = {dotted(name) for name in self.old if name.endswith(".py")}
        self.modules |= {dotted(folder) for folder in self.folders if folder.startswith(("src/buckram", "tests"))}
        self.names = {dotted(old): dotted(new) for old, new in self.moves.items()}
        self.exact = {dotted(SOURCE + name) for name in group.exact}

    def carry_out(self) -> list[str]:
        texts = {name: text for name in sorted(self.old) if (text := self._text(name)) is not None}
        written = {name: self._rewritten(name, text) for name, text in texts.items()}
        self._move()
        for name in self.group.drop:
            del written[name]
        for name, text in written.items():
            Path(self.moved(name)).write_text(text, encoding="utf-8")
        for name, text in self.group.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        self._modules_table()
        self._budgets()
        self._soak()
        for edit in self.group.edits:
            self._edit(**edit)
        self._contracts()
        self._tidy()
        return self.faults

    # -- where things go --------------------------------------------------------------------------------

    def moved(self, path: str) -> str:
        """The new path of an old one; the same if it does not move. The longest entry that fits is the one."""
        if path in self.group.keep:
            return path
        for known in (path, *(parent.as_posix() for parent in PurePosixPath(path).parents)):
            if known in self.moves:
                return self.moves[known] + path.removeprefix(known)
        return path

    def module(self, name: str) -> str:
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            known = ".".join(parts[:count])
            if known in self.names:
                return ".".join([self.names[known], *parts[count:]])
        return name

    def _move(self) -> None:
        done = {PurePosixPath(old).parent.as_posix() for old in self.group.drop}
        for old in self.group.drop:
            git("rm", "-q", old)
        for old in sorted(self.old - set(self.group.drop)):
            new = self.moved(old)
            if new == old:
                continue
            if new in self.old:
                self.faults.append(f"{old} cannot become {new}, which exists")
                continue
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            git("mv", old, new)
            done.add(PurePosixPath(old).parent.as_posix())
        for folder in sorted(done, reverse=True):
            place = Path(folder)
            left = [one for one in place.rglob("*") if one.is_file() and "__pycache__" not in one.parts]
            if place.is_dir() and not left:
                shutil.rmtree(place)
        folders = {parent.as_posix() for old in self.old for parent in PurePosixPath(self.moved(old)).parents}
        for folder in sorted(folders):
            init = f"{folder}/__init__.py"
            there = Path(init).exists() or init in self.group.files
            if folder.startswith(SOURCE) and any(Path(folder).rglob("*.py")) and not there:
                self.faults.append(f"{init} is missing: add it to `files` of the table")

    # -- texts ------------------------------------------------------------------------------------------

    def _text(self, name: str) -> str | None:
        data = "/fixtures/" in name or name.startswith(("locks/", "tests/formats/"))
        if Path(name).suffix not in TEXT or (data and not name.endswith(".py")):
            return None
        try:
            return Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return None

    def _rewritten(self, name: str, text: str) -> str:
        everything = name in ("pyproject.toml", "scripts/public_imports.py")
        if name.endswith(".py"):
            text = self._imports(name, text)
        lines = self._import_lines(text) if name.endswith((".py", ".pyi")) else set()
        numbers = Numbers(text)

        def new_name(found: re.Match[str]) -> str:
            old, before = found["name"], found["before"] or ""
            if before and self.module(old).partition(".")[0] != old.partition(".")[0]:
                return found[0]  # A program that a shim still starts by its old name.
            known = self._known(old)
            if known is None or self.module(known) == known:
                return found[0]
            bare = known in self.names and known not in self.exact and known.count(".") == 1 and not before
            if known in self.names and f"src/{known.replace('.', '/')}/__init__.py" in self.group.keep:
                return found[0]
            if bare and old == known and not everything and numbers.line(found.start()) not in lines:
                return found[0]
            if bare and old != known and not self._inside(known, old.removeprefix(known + ".").partition(".")[0]):
                return found[0]
            return before + self.module(old)

        text = DOTTED.sub(new_name, text)
        text = PATH.sub(lambda found: self._new_path(name, text, found), text)
        text = text.replace(f"{KEPT}.", "buckram.")
        return DEPTH.sub(lambda found: self._new_depth(name, found), text) if name.endswith(".py") else text

    def _known(self, name: str) -> str | None:
        """The longest beginning that is a module or a package."""
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            if (known := ".".join(parts[:count])) in self.modules:
                return known
        return None

    def _inside(self, package: str, name: str) -> bool:
        """Whether a package has something of this name; without it, the dotted name is about something else."""
        init = Path("src", *package.split("."), "__init__.py")
        return init.as_posix() in self.old and re.search(rf"\b{name}\b", init.read_text(encoding="utf-8")) is not None

    def _import_lines(self, text: str) -> set[int]:
        tree = ast.parse(text)
        found: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return found

    def _imports(self, name: str, text: str) -> str:
        """Split statements whose names go to several places: `from buckram import java, sync`."""
        lines = text.splitlines(keepends=True)
        nodes = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
        ]
        for node in sorted(nodes, key=lambda one: -one.lineno):
            module = node.module or ""
            places: dict[str, list[str]] = {}
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                place = module
                if self._stays(module, alias.name):
                    place = module.replace("buckram.", f"{KEPT}.", 1)
                elif f"src/{whole.replace('.', '/')}/__init__.py" in self.group.keep:
                    pass
                elif whole in self.modules and self.module(whole) != whole:
                    package, _, last = self.module(whole).rpartition(".")
                    place = package
                    if last != alias.name:
                        alias = ast.alias(last, alias.asname or alias.name)
                places.setdefault(place, []).append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
            if set(places) == {module}:
                continue
            end = node.end_lineno or node.lineno
            indent, tail = lines[node.lineno - 1][: node.col_offset], lines[end - 1][node.end_col_offset or 0 :]
            if lines[node.lineno - 1][: node.col_offset].strip() or (tail.strip() and not tail.strip().startswith("#")):
                self.faults.append(f"{name}:{node.lineno}: an import beside other code")
                continue
            new = [f"{indent}from {place} import {', '.join(names)}" for place, names in places.items()]
            lines[node.lineno - 1 : end] = ["\n".join(new) + tail]
        return "".join(lines)

    def _stays(self, module: str, name: str) -> bool:
        """Whether a name is meant that a package offers whose `__init__.py` is not moved."""
        init = f"src/{module.replace('.', '/')}/__init__.py"
        if init not in self.group.keep:
            return False
        return f'"{name}"' in Path(init).read_text(encoding="utf-8") or f"{module}.{name}" not in self.modules

    def _new_path(self, name: str, text: str, found: re.Match[str]) -> str:
        path, up = found["path"], found["up"]
        if name in MADE_UP:
            return found[0]
        place = f"{up}{path}"
        for prefix in (SOURCE, TESTS):
            if path.startswith(prefix):
                bare = path.rstrip("/.")
                new = self.moved(bare)
                return found[0] if new == bare else up + new + path.removeprefix(bare)
        if not up and path.startswith("buckram/") and f"src/{path}" in self.old:  # As it stands in a wheel.
            new = self.moved(f"src/{path}")
            return new.removeprefix("src/") if new.startswith("src/") else found[0]
        whole = SOURCE + path.rstrip(".")
        if name.endswith(".py") and f"{whole}.py" in self.old and text[found.start() - 1] not in "\"'":  # In prose.
            new = self.moved(f"{whole}.py").removeprefix(SOURCE).removesuffix(".py")
            return up + new + ("." if path.endswith(".") else "")
        before, after = text[found.start() - 1 : found.start()], text[found.end() : found.end() + 1]
        quoted = before == "`" and after in ("`", ":")
        file = whole in self.old
        folder = quoted and whole.rstrip("/") in self.folders
        if up or not (file or folder) or (file and "." not in PurePosixPath(path).name):
            return place
        new = self.moved(whole.rstrip("/"))
        if new == whole.rstrip("/"):
            return place
        return new.removeprefix(SOURCE) + ("/" if path.endswith("/") else "") + ("." if path.endswith(".") else "")

    def _new_depth(self, name: str, found: re.Match[str]) -> str:
        new = self.moved(name)
        if new == name:
            return found[0]
        shared = 0
        for one, two in zip(reversed(PurePosixPath(name).parts), reversed(PurePosixPath(new).parts), strict=False):
            if one != two:
                break
            shared += 1
        number = int(found["number"])
        if number and number + 1 >= shared:
            number += new.count("/") - name.count("/")
        return f"{found['head']}{number}"

    # -- tables -----------------------------------------------------------------------------------------

    def _modules_table(self) -> None:
        path = Path("tests/modules.toml")
        row = re.compile(r'^"(?P<module>[^"]+)" = "(?P<test>[^"]+)"$')
        lines = []
        section = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            found = row.match(line)
            if found is None:
                lines.append(line)
                continue
            module, slash = found["module"].rstrip("/"), "/" if found["module"].endswith("/") else ""
            new = (
                self.moved(f"{SOURCE}{module}" if slash else f"{SOURCE}{module}.py")
                .removesuffix(".py")
                .removeprefix(SOURCE)
            )
            test = found["test"]
            if section == "covered":
                test = self.moved(f"{TESTS}{test}.py").removeprefix(TESTS).removesuffix(".py")
            lines.append(f'"{new}{slash}" = "{test}"')
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _budgets(self) -> None:
        """Join the rows of folders that became parts of one: what they take is added up."""
        path = Path("tests/budget.toml")
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = tomllib.loads("\n".join(lines))["folders"]
        for old, new in self.group.budgets.items():
            if old not in rows:
                self.faults.append(f"tests/budget.toml has no row {old}, which joins {new}")
                continue
            took, has = rows.pop(old), rows.get(new, {"cpu": 0, "seconds": 0})
            joined = {"cpu": has["cpu"] + took["cpu"], "seconds": has["seconds"] + took["seconds"]}
            parts = has.get("parts", 1) * bool(has["cpu"]) + took.get("parts", 1)
            parts = min(parts, -(-joined["seconds"] // 100))
            memory = max(has.get("memory", 0.7), took.get("memory", 0.7))
            joined |= ({"parts": parts} if parts > 1 else {}) | ({"memory": memory} if memory != 0.7 else {})
            rows[new] = joined
            at = next(number for number, line in enumerate(lines) if line.startswith(f"{old} = "))
            shown = f"{new} = {{ {', '.join(f'{key} = {value}' for key, value in joined.items())} }}"
            standing = [number for number, line in enumerate(lines) if line.startswith(f"{new} = ")]
            if standing:
                lines[standing[0]] = shown
                del lines[at]
            else:
                lines[at] = shown
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _soak(self) -> None:
        """Let `make soak` run a folder that others joined as one; where variables are set, the parts stay as well."""
        path = Path("scripts/soak.py")
        text = path.read_text(encoding="utf-8")
        for new in sorted(set(self.group.budgets.values())):
            part = re.compile(rf'"tests/{new}/\w+"(?:, |,\n *)?')
            for found in reversed(list(part.finditer(text))):
                start, end = found.span()
                line = text[text.rfind("\n", 0, start) : start]
                if '"env"' in line:
                    continue
                here = "" if f'"tests/{new}"' in text else re.sub(r'"tests/[^"]+"', f'"tests/{new}"', found[0])
                text = text[:start] + here + text[end:]
        path.write_text(text, encoding="utf-8")

    def _edit(self, file: str, old: str, new: str, everywhere: bool = False) -> None:
        path = Path(file)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if new and new in text and old not in text:
            return
        if text.count(old) != 1 and not (everywhere and old in text):
            self.faults.append(f"{file} has {text.count(old)} times: {old!r}, which becomes {new!r}")
            return
        path.write_text(text.replace(old, new), encoding="utf-8")

    def _contracts(self) -> None:
        """Replace keys of import-linter's contracts, which are found by their names."""
        path = Path("pyproject.toml")
        text = path.read_text(encoding="utf-8")
        for title, keys in self.group.contracts.items():
            at = text.find(f'\nname = "{title}"\n')
            if at < 0:
                self.faults.append(f"pyproject.toml has no contract {title!r}")
                continue
            end = text.find("\n[[", at + 1)
            end = len(text) if end < 0 else end
            block = text[at:end]
            for key, value in keys.items():
                shown = _as_toml(key, value)
                pattern = re.compile(rf"^{key} = (?:\[[^\]]*\]|\".*\")$", re.MULTILINE)
                block, count = pattern.subn(shown.replace("\\", r"\\"), block, count=1)
                if not count:
                    self.faults.append(f"the contract {title!r} has no {key}")
            text = text[:at] + block + text[end:]
        path.write_text(text, encoding="utf-8")

    # -- at the end -------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        git("add", "-A")
        tool = Path(sys.executable).parent
        ruff = tool / "ruff"
        subprocess.run([ruff, "check", "--quiet", "--fix", "--select", "I", "."], check=False)
        subprocess.run([ruff, "format", "--quiet", "."], check=False)
        for _ in range(5):
            long = subprocess.run(
                [ruff, "check", "--quiet", "--select", "E501", "--output-format", "concise", "."],
                capture_output=True, text=True, check=False,
            ).stdout  # fmt: skip
            rows = re.findall(r"^(\S+?):(\d+):\d+: E501", long, re.MULTILINE)
            wrapped = [
                _wrap(Path(file), int(line)) for file, line in sorted(rows, key=lambda row: (row[0], -int(row[1])))
            ]
            if not any(wrapped):
                break
        subprocess.run([ruff, "format", "--quiet", "."], check=False)
        left = subprocess.run(
            [ruff, "check", "--quiet", "--output-format", "concise", "."], capture_output=True, text=True, check=False
        ).stdout
        self.faults += [line for line in left.splitlines() if ".py:" in line]
        made = subprocess.run([sys.executable, "scripts/generate_docs.py"], capture_output=True, text=True, check=False)
        if made.returncode:
            self.faults.append(f"scripts/generate_docs.py: {(made.stderr or made.stdout).strip().splitlines()[-1]}")
        git("add", "-A")


class Numbers:
    """Which line a place in a text is in."""

    def __init__(self, text: str) -> None:
        self._ends = [found.start() for found in re.finditer("\n", text)]

    def line(self, at: int) -> int:
        from bisect import bisect_left

        return bisect_left(self._ends, at) + 1


def _as_toml(key: str, value: Any) -> str:
    if isinstance(value, str):
        return f'{key} = "{value}"'
    one = f"{key} = [{', '.join(f'{chr(34)}{part}{chr(34)}' for part in value)}]"
    if len(one) <= WIDTH:
        return one
    return "\n".join([f"{key} = [", *(f'  "{part}",' for part in value), "]"])


def _wrap(path: Path, number: int) -> bool:
    """Break a line of prose that became too long; its rest goes before the next line of its paragraph."""
    lines = path.read_text(encoding="utf-8").split("\n")
    line = lines[number - 1]
    body = line.lstrip()
    indent = line[: len(line) - len(body)]
    mark = "# " if body.startswith("# ") else ""
    if mark == "" and not _prose(lines, number):
        return False
    ending = '"""' if not mark and line.endswith('"""') else ""
    content = line.removesuffix('"""') if ending else line
    cut = content.rfind(" ", 0, WIDTH + 1) if len(content) > WIDTH else -1
    first, stop, second = content.rpartition(". ")
    if ending and stop and body.startswith('"""'):
        # A line of its own for the second sentence: the formatter joins quotes that only do not fit.
        lines[number - 1 : number] = [f"{first}.", "", indent + second, indent + ending]
    elif ending and body.startswith('"""'):
        cut = content.rfind(" ", 0, WIDTH - 2)
        lines[number - 1 : number] = [content[:cut], indent + content[cut + 1 :], indent + ending]
    elif ending and len(content) <= WIDTH:
        lines[number - 1 : number] = [content, indent + ending]
    elif cut <= len(indent) + len(mark):
        return False
    else:
        rest = content[cut + 1 :]
        following = lines[number] if number < len(lines) else ""
        joins = _continues(following, indent, mark) and not ending
        lines[number - 1] = content[:cut]
        if joins:
            lines[number] = f"{indent}{mark}{rest} {following.strip().removeprefix(mark)}"
        elif ending:
            lines[number:number] = [indent + rest, indent + ending]
        else:
            lines.insert(number, f"{indent}{mark}{rest}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return True


def _continues(line: str, indent: str, mark: str) -> bool:
    body = line.strip()
    same = line.startswith(indent + mark) and not line[len(indent + mark) :].startswith(" ")
    return bool(body) and same and not body.removeprefix(mark).startswith(("* ", "- ", '"""', "#"))


def _prose(lines: list[str], number: int) -> bool:
    """Whether a line is within a docstring."""
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return any(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        and node.lineno <= number <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
