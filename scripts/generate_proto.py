"""Regenerate src/buckram/core/wire/bookkeeper_pb2.py and .pyi from the .proto: `python scripts/generate_proto.py`.

Generated code needs a protobuf at least as new as its generator, so the generator is pinned to the oldest protobuf that
pyproject.toml allows (6.31: group `proto`) and installed into a temporary environment instead of the development one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTO = SOURCE / "buckram" / "core" / "wire" / "bookkeeper.proto"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        make_venv = Path(__file__).with_name("make_venv.py")
        subprocess.check_call([sys.executable, str(make_venv), folder, "--lock", "proto"])
        out = [f"-I{SOURCE}", f"--python_out={SOURCE}", f"--pyi_out={SOURCE}", str(PROTO)]
        subprocess.check_call([str(Path(folder) / "bin" / "python"), "-m", "grpc_tools.protoc", *out])
    print(f"generated from {PROTO}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
