"""Build helm beside the Python of a virtual environment: `python scripts/fetch_helm.py .venv`.

Out of the Go module proxy; a Go compiler is needed, and minutes, once. The module must have the checksum that was
tested, and its go.sum has those of all that it needs. An existing helm is kept. It is part of `make setup-all`; a
failure is not an error: the tests that need helm are skipped. A build that takes too long is given up; compiled parts
stay in Go's cache, from where the next build goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

MODULE, VERSION, PROGRAM = "helm.sh/helm/v3", "v3.16.4", "cmd/helm"
SUM = "h1:rBn/h9MACw+QlhxQTjpl8Ifx+VTWaYsw3rguGBYBzr0="
"""Checksum of the module, as in `go mod download -json` and in a go.sum."""
MISSING = "MISSING: tests of the Helm chart"
SECONDS = 180
"""Time limit of the build in a set-up, seconds; `--seconds` replaces it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch_helm.py", description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    bin: Path = options.venv.absolute() / "bin"
    found = str(bin / "helm") if (bin / "helm").exists() else shutil.which("helm")
    print(f"  {'helm':<10} {found or build(bin, options.seconds)}", flush=True)
    return 0


def build(bin: Path, seconds: float) -> str:
    """Build helm; return the result as text."""
    go = shutil.which("go")
    if go is None:
        return f"{MISSING}; there is no Go to build it with"
    began = time.monotonic()
    try:
        fetched = json.loads(_go([go, "mod", "download", "-json", f"{MODULE}@{VERSION}"], Path.cwd(), seconds))
        if fetched["Sum"] != SUM:
            return f"{MISSING}; {MODULE} {VERSION} has the checksum {fetched['Sum']}, and {SUM} was tested: not built"
        # Where its source is, so that its own go.sum is held to.
        draft = bin / "helm.new"
        left = seconds - (time.monotonic() - began)
        _go([go, "build", "-ldflags=-s -w", "-o", str(draft), f"./{PROGRAM}"], Path(fetched["Dir"]), left)
        draft.replace(bin / "helm")
    except subprocess.TimeoutExpired:
        return f"{MISSING}; not built within {seconds:g} s, run scripts/fetch_helm.py again"
    except subprocess.CalledProcessError as error:
        return f"{MISSING}; {(error.stderr.strip() or 'no reason').splitlines()[-1]}"
    return f"{bin / 'helm'}, built in {time.monotonic() - began:.0f} s from {MODULE} {VERSION}"


def _go(command: list[str], folder: Path, seconds: float) -> str:
    environment = {**os.environ, "GOFLAGS": "-trimpath", "CGO_ENABLED": "0"}
    return subprocess.run(
        command, cwd=folder, env=environment, timeout=max(seconds, 1.0), capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
