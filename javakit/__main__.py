"""`python -m javakit`: which tools beyond PyPI are here, and Apache's jars fetched where Maven is.

Part of `make setup-all`. Nothing that is missing is an error: what needs it is skipped, or says so. A jar that is not
the one that was tested is one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from buckram.errors import ConfigError
from buckram.launch.java import find_java
from javakit.hashes import FILE, WrongJar
from javakit.programs import CONNECTOR, KAFKA, NEWEST, OLDER, NoJava, jars, missing_tools

USES = {
    "cc": "the compiled module; without it its Python twin does the same",
    "git": "the results of make bench and make soak belong to a commit",
    "javac": "tests/interop and make bench-java: a JDK 17",
    "mvn": "tests/interop, make bench-java and imports from Kafka: Maven",
    "ip": "make bench NET=1",
}
BUILD = Path("build/jars")


def main() -> int:
    for tool, use in USES.items():
        found = shutil.which(tool)
        print(f"  {tool:6} {found or 'MISSING: ' + use}", flush=True)
    try:
        java = find_java()
        print(f"  {'java':6} {java.home} ({java.version})", flush=True)
    except ConfigError as error:
        print(f"  {'java':6} MISSING: {error}", flush=True)
    if missing_tools():
        return 0
    names = {
        NEWEST: "Apache BookKeeper, newest", OLDER: "Apache BookKeeper, older", KAFKA: "Apache Kafka",
        CONNECTOR: "Spark's connector for Kafka",
    }  # fmt: skip
    wrong = False
    for line, name in names.items():
        try:
            print(f"  {name}: {len(jars(BUILD, line))} jars, as {FILE.name} has them", flush=True)
        except NoJava as error:
            print(f"  {name}: {error}", flush=True)
        except WrongJar as error:
            wrong = True
            print(f"  {name}: {error}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
