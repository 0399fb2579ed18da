"""Carries out the steps of a container file in folders, without Docker: each stage has one in the place of its root.

Not done: base images, users, packages of the system. What would change the system (apt-get, useradd, chown) is noted
in `calls` instead. Absolute paths that the file names are those below the stage's folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOTS = ("/opt/buckram", "/src", "/data")
NOT_DONE = ("apt-get", "useradd", "chown")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "build")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass
class Stage:
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    user: str = ""

    def inside(self, text: str) -> str:
        """`text` with the paths of the image as they are in the folder."""
        for name in ROOTS:
            text = re.sub(rf"(?<![\w/.]){re.escape(name)}(?![\w-])", f"{self.root}{name}", text)
        return text

    def path(self, name: str) -> Path:
        return Path(f"{self.root}{os.path.normpath(os.path.join(self.directory, name))}")


class Build:
    """`run()` gives the last stage. `arguments` are those of --build-arg, `environment` is that of all RUN steps."""

    def __init__(
        self, file: Path, context: Path, work: Path, arguments: Mapping[str, str], environment: Mapping[str, str]
    ):
        self._file, self._context, self._work = file, context, work
        self._arguments, self._environment = arguments, environment
        self._stages: dict[str, Stage] = {}
        self.calls: list[str] = []
        self._variables: dict[str, str] = {}

    def run(self) -> Stage:
        stage: Stage | None = None
        for word, rest in self._steps():
            if word == "ARG":
                name, _, value = rest.partition("=")
                self._variables[name] = self._arguments.get(name, value)
                continue
            rest = _VARIABLE.sub(lambda found: self._variables.get(found[1], ""), rest)
            if word == "FROM":
                name = rest.partition(" AS ")[2] or str(len(self._stages))
                stage = self._stages[name] = Stage(self._work / name)
                stage.root.mkdir(parents=True)
            else:
                assert stage is not None
                self._step(stage, word, rest)
        assert stage is not None
        return stage

    def _steps(self) -> list[tuple[str, str]]:
        lines = [line for line in self._file.read_text().splitlines() if line.strip() and not line.startswith("#")]
        joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
        return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]

    def _step(self, stage: Stage, word: str, rest: str) -> None:
        if word == "RUN":
            self._shell(stage, rest)
        elif word == "COPY":
            self._copy(stage, rest.split())
        elif word == "WORKDIR":
            stage.directory = rest
            stage.path(".").mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.environment[name] = stage.inside(value)
        elif word == "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        elif word == "CMD":
            stage.command = [stage.inside(one) for one in json.loads(rest)]
        elif word == "HEALTHCHECK":
            stage.healthcheck = [stage.inside(one) for one in json.loads(rest.partition("CMD ")[2])]
        elif word == "USER":
            stage.user = rest
        else:
            assert word in ("VOLUME", "EXPOSE", "STOPSIGNAL"), f"{word}: not known here"

    def _copy(self, stage: Stage, words: list[str]) -> None:
        source_root = self._context
        if words[0].startswith("--from="):
            source_root = self._stages[words.pop(0).removeprefix("--from=")].root
        *sources, target = words
        for name in sources:
            source, where = source_root / name.lstrip("/"), stage.path(target)
            if source.is_dir():
                shutil.copytree(
                    source, where, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so", "build")
                )
            else:
                where = where / source.name if target.endswith("/") else where
                where.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, where)

    def _shell(self, stage: Stage, command: str) -> None:
        tools = self._work / "tools"
        if not tools.exists():
            tools.mkdir()
            for name in NOT_DONE:
                (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{self._work}/calls"\n')
            (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            for path in tools.iterdir():
                path.chmod(0o755)
        path = f"{tools}:{os.environ['PATH']}"
        environment = {**os.environ, **self._environment, **stage.environment, "PATH": path}
        done = subprocess.run(
            ["sh", "-euc", stage.inside(command)],
            cwd=stage.path("."),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        if (self._work / "calls").exists():
            self.calls = (self._work / "calls").read_text().splitlines()
