"""`python scripts/hot_sanitized.py`: the compiled module's tests with AddressSanitizer and UndefinedBehaviorSanitizer.

They run in a copy of the sources, so that the module that is in use stays. Part of `make soak`; needs gcc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all")  # fmt: skip


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        entries = copy / "src" / "buckram" / "core" / "entries"
        build = ["gcc", *FLAGS, f"-I{sysconfig.get_paths()['include']}", *map(str, sorted(entries.glob("*.c")))]
        subprocess.run([*build, "-o", str(entries / "_hot.abi3.so")], check=True)
        libraries = [
            subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        environment = {
            **os.environ, "PYTHONPATH": str(copy / "src"), "LD_PRELOAD": " ".join(libraries),
            # Python keeps memory until its end; what leaks in between is not found by that.
            "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc",
        }  # fmt: skip
        told = subprocess.run(
            [sys.executable, "-c", "from buckram.core.entries import _hot; print(_hot.__file__)"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not told.stdout.startswith(folder):
            print(f"the module with sanitizers is not the one in use: {told.stdout}{told.stderr}")
            return 1
        # What a sanitizer says as it ends the process must not stay in a captured descriptor.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"]
        command += ["tests/core/entries/test_hot.py", "tests/core/storage/test_plain_adds.py"]
        return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
