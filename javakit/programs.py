"""Jars that Maven resolves, our programs that javac compiles with them, and JVMs that run both.

Maven is asked once per pom.xml and release line, and every jar compared with the SHA-256 that was tested (hashes.py);
what it said is kept below `build` by the hash of both files, compiled classes by the hash of the sources.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from javakit import hashes

POM = Path(__file__).parent / "pom.xml"
NEWEST, OLDER = "newest", "older"
KAFKA, CONNECTOR = "kafka", "connector"
"""A server of Kafka, and what Spark reads it with; they have a pom of their own."""
PULSAR = "pulsar"
"""A broker and a client of Pulsar, 240 MB, which only a soak fetches."""
DISTRIBUTEDLOG, HERDDB = "distributedlog", "herddb"
"""A library of logs and a database that keep what they write in ledgers; a soak only fetches them, too."""
POMS = {
    KAFKA: POM.with_name("kafka.xml"), CONNECTOR: POM.with_name("kafka.xml"), PULSAR: POM.with_name("pulsar.xml"),
    DISTRIBUTEDLOG: POM.with_name("others.xml"), HERDDB: POM.with_name("others.xml"),
}  # fmt: skip
LINES = (NEWEST, OLDER, KAFKA, CONNECTOR, PULSAR, DISTRIBUTEDLOG, HERDDB)
RESOLVE = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
TOOLS = ("java", "javac", "mvn")
# What the scripts of the distribution pass.
OPENS = (
    "-Djava.net.preferIPv4Stack=true", "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED", "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
)  # fmt: skip
LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper=warn",
    "-Dorg.slf4j.simpleLogger.log.io.netty=warn", "-Dorg.slf4j.simpleLogger.log.org.apache.bookkeeper.client=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.bookkeeper.net=warn",
)  # fmt: skip


class NoJava(Exception):
    """No JDK or no Maven here, or Maven cannot resolve; says which and what to do."""


def missing_tools() -> str:
    """Which of the tools are not here; empty when all are."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"no {', '.join(absent)} on the PATH: install a JDK 17 and Maven" if absent else ""


def class_path(sources: Sequence[Path], build: Path, line: str = NEWEST) -> str:
    """Compiled programs and the jars of a line ("newest", "older", "pulsar"); NoJava when they cannot be had.

    What is found is kept below `build`, which may be shared by processes.
    """
    with _locked(build) as folder:
        found = _resolve(folder, line)
        return f"{_compile(sources, folder, line, found)}:{found}"


def jars(build: Path, line: str = NEWEST, *, checked: bool = True) -> list[str]:
    """The jars of a release line, of Kafka or of Spark's connector for it; NoJava when they cannot be had.

    WrongJar when one is not as `locks/jars.txt` has it, unless it is that file which is being written.
    """
    with _locked(build) as folder:
        return _resolve(folder, line, checked=checked).split(":")


@contextlib.contextmanager
def _locked(build: Path) -> Iterator[Path]:
    """The folder, made and locked, where all tools are here."""
    absent = missing_tools()
    if absent:
        raise NoJava(absent)
    build = build.absolute()  # Maven takes relative names from where pom.xml is
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield build


def _resolve(build: Path, line: str, *, checked: bool = True) -> str:
    pom = POMS.get(line, POM)
    kept = build / f"{line}-{_hash([pom, hashes.FILE] if checked else [pom])}.classpath"
    if kept.exists():
        found = kept.read_text().strip()
        if all(Path(jar).exists() for jar in found.split(":")):
            return found
    draft = kept.with_suffix(".new")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), "-P", line, RESOLVE, f"-Dmdep.outputFile={draft}"],
        capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise NoJava(f"Maven could not resolve {pom} ({line}): {done.stdout[-1500:]}{done.stderr[-500:]}")
    found = draft.read_text().strip()
    if checked:
        hashes.check(map(Path, found.split(":")))
    draft.replace(kept)
    return found


def _compile(sources: Sequence[Path], build: Path, line: str, found: str) -> Path:
    classes = build / f"{line}-{_hash([POMS.get(line, POM), *sources])}.classes"
    if not classes.exists():
        draft = classes.with_suffix(f".{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        done = subprocess.run(
            ["javac", "-nowarn", "-proc:none", "-Xlint:-options", "-d", str(draft), "-cp", found, *map(str, sources)],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"javac: {done.stderr[-4000:]}"
        draft.replace(classes)
    return classes


def _hash(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def spawn(
    classes: str,
    options: Sequence[str],
    arguments: Sequence[str],
    log: Path,
    *,
    talks: bool,
    launcher: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """A JVM with a pipe as standard input, at whose end it shall end (our programs do).

    `talks`: its standard output is for us; else that goes to the log, too. `launcher` stands before the command and
    must become it (exec).
    """
    with log.open("ab") as out:
        return subprocess.Popen(
            [*launcher, "java", *options, *OPENS, *LOGGING, "-cp", classes, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE if talks else out, stderr=out,
        )  # fmt: skip


def end(process: subprocess.Popen[bytes], deadline_s: float = 10.0) -> None:
    """Wait for a process that was told to end, kill it when it does not."""
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
