"""The quick start with an installed Buckram: three bookies, a stream, the command. `python scripts/try_install.py`.

With `--compiled` the compiled module must be there, with `--pure` it must not be. Run it with the Python of the
environment to try; nothing of the checkout is imported.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="try_install.py", description=__doc__)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--compiled", action="store_true", help="fail without the compiled module")
    kind.add_argument("--pure", action="store_true", help="fail with the compiled module")
    options = parser.parse_args()
    import buckram
    from buckram.core.entries.hot import COMPILED

    where = Path(buckram.__file__).parent
    if where.is_relative_to(Path(__file__).resolve().parents[1] / "src"):
        print(f"{where} is the checkout: run it with the Python of an environment that Buckram was installed into")
        return 1
    if (options.compiled and not COMPILED) or (options.pure and COMPILED):
        print(f"the compiled module is {'there' if COMPILED else 'missing'}")
        return 1
    values = quick_start()
    assert values == [b"one", b"two"], values
    kind_of_code = "compiled" if COMPILED else "pure Python"
    print(f"{where}: {kind_of_code}, Python {platform.python_version()}, {sys.platform} {platform.machine()}: it works")
    return 0


def quick_start() -> list[bytes | None]:
    """Run the example at the beginning of the README, and read the records with the command."""
    from buckram import connect
    from buckram.testing import ThreadedCluster

    async def written_and_read(uri: str) -> list[bytes | None]:
        async with connect(uri) as client:
            ns = client.namespace()
            async with ns.writer("orders") as writer:
                await writer.append_many([b"one", b"two"])
            return [record.value async for record in ns.read("orders")]

    with tempfile.TemporaryDirectory() as folder, ThreadedCluster(bookies=3) as cluster:
        values = asyncio.run(written_and_read(cluster.uri))
        command = [sys.executable, "-m", "buckram", "stream", "read", "orders", "--metadata", cluster.uri]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BUCKRAM_")}
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, b"one\ntwo\n"), done
    return values


if __name__ == "__main__":
    raise SystemExit(main())
