"""Install Debian's Chromium for the tests of the console: `python scripts/fetch_browser.py`. Part of `make setup-all`.

It needs root and apt-get. A missing browser is not an error: the tests that need one are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess

PACKAGE = "chromium"
SECONDS = 900


def main() -> int:
    found = shutil.which(PACKAGE)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", PACKAGE]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=SECONDS, check=False, env=environment)
        found = shutil.which(PACKAGE)
    print(f"  chromium {found or 'is missing: as root, apt-get install chromium'}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
