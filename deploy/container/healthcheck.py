"""Whether the bookie of this container works: exit code 0 or 1. For HEALTHCHECK of the Containerfile."""

from __future__ import annotations

import os
import sys
import urllib.request

SECONDS = 4.0


def main() -> int:
    port = os.environ.get("BUCKRAM_BOOKIE_HTTP", "").rpartition(":")[2]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=SECONDS) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, ValueError) as error:
        print(f"no health at port {port!r}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
