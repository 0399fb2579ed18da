"""Build helm beside the Python of a virtual environment: `python scripts/fetch_helm.py .venv`.

Out of the Go module proxy, checked by its checksum database; a Go compiler is needed, and minutes, once. What is
found already is left alone. Part of `make setup-all`; that it cannot be had is no error: what needs it is skipped. A
build that takes too long is given up, and what was compiled stays in Go's cache: the next one goes on from there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from pathlib import Path

MODULES = {"helm": "helm.sh/helm/v3/cmd/helm@v3.16.4"}
SECONDS = 180
"""Of a set-up; `--seconds` gives it more."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch_helm.py", description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    bin: Path = options.venv.absolute() / "bin"
    for name, module in MODULES.items():
        found = str(bin / name) if (bin / name).exists() else shutil.which(name)
        print(f"  {name:<10} {found or build(name, module, bin, options.seconds)}", flush=True)
    return 0


def build(name: str, module: str, bin: Path, seconds: float) -> str:
    """What became of it, in words."""
    go = shutil.which("go")
    if go is None:
        return "MISSING: tests of the Helm chart; there is no Go to build it with"
    began = time.monotonic()
    environment = {**os.environ, "GOBIN": str(bin), "GOFLAGS": "-trimpath", "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(
            [go, "install", "-ldflags=-s -w", module],
            env=environment,
            timeout=seconds,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"MISSING: tests of the Helm chart; not built within {seconds:g} s, run scripts/fetch_helm.py again"
    if done.returncode != 0:
        return f"MISSING: tests of the Helm chart; {(done.stderr.strip() or 'no reason').splitlines()[-1]}"
    return f"{bin / name}, built in {time.monotonic() - began:.0f} s from {module}"


if __name__ == "__main__":
    raise SystemExit(main())
