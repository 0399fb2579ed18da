"""Where Spark's checkpoints are: a gateway of the cluster, which serves files to Hadoop's client.

Not here: what is offloaded (`history.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from buckram import connect
from buckram.cli.up.security_files import SecureDirectory
from buckram.spark.checkpoints.contents import Checkpoint, describe
from buckram.spark.relay.hadoop_settings import OF_ENVIRONMENT, settings
from buckram.spark.relay.trust_store import write_trust_store
from examples.debian.load import NAMESPACE

CHECKPOINTS = "checkpoints"
"""The directory of the namespace that has the queries' checkpoints."""


class Files:
    """`buckram gateway` as a process of its own. `uri` is the metadata store itself, where tokens are known.

    With a guard it asks for tokens and speaks TLS, and Java is given a trust store for it.
    """

    def __init__(self, uri: str, folder: Path, guard: SecureDirectory | None) -> None:
        self._folder, self._guard = folder, guard
        self.log = folder / "gateway.log"
        command = [sys.executable, "-m", "buckram", "gateway", "--metadata", uri, "--port", "0", "--json"]
        if guard is not None:
            tls = guard.gateway_tls()
            command += ["--tokens", "--tls-cert", tls.certificate, "--tls-key", tls.key]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self.pid, self.root = self._process.pid, ""

    def wait_ready(self) -> None:
        """Wait until it serves; `root` is then what paths begin with. RuntimeError if it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the gateway ended with code {self._process.wait()}: {self.log.read_text()[-1000:]}")
        self.root = f"{'webhdfs' if self._guard is None else 'swebhdfs'}://{json.loads(line)['webhdfs']}"

    @property
    def checkpoints(self) -> str:
        """The directory of all checkpoints, as Spark names it."""
        return f"{self.root}/{NAMESPACE}/{CHECKPOINTS}"

    def spark_settings(self) -> dict[str, str]:
        """What Spark is told about the gateway; the token is in the environment."""
        if self._guard is None:
            return settings(f"{self.root}/")
        trusted = write_trust_store(self._guard.ca, self._folder / "gateways.p12")
        return settings(f"{self.root}/", token=OF_ENVIRONMENT, trust_store=trusted)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def checkpoint(uri: str, kind: str) -> Checkpoint:
    """What is in a query's checkpoint, read from the objects without Spark and without the gateway."""
    async with connect(uri) as client, client.objects(NAMESPACE) as objects:
        return await describe(objects, f"{CHECKPOINTS}/{kind}")


def environment() -> dict[str, str]:
    """Of a process that starts in a directory which holds nothing: where the code of the checkout is."""
    checkout = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))}
