"""Passes the relay's address to the driver's JVM: settings go to other machines, too, but the relay is on this one.

So settings name a Java property. It is set in a JVM that runs already; a JVM started later gets a variable of the
environment. Where there is neither, the first gateway takes the relay's place. Not here: the relay (`relay.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from buckram.spark.relay.server import relay_to


class RelayPlace(NamedTuple):
    """Address of this process's relay to these gateways, for settings."""

    gateways: tuple[str, ...]
    ca: str = ""
    """File of the authorities that signed their certificates; empty: they have no TLS."""

    @property
    def _property(self) -> str:
        # Each set of gateways has its own: one process may use several, with one JVM.
        return f"buckram.relay.{hashlib.sha256(','.join((*self.gateways, self.ca)).encode()).hexdigest()[:12]}"

    @property
    def _variable(self) -> str:
        return self._property.replace(".", "_").upper()

    @property
    def address(self) -> str:
        """Return the placeholder that Hadoop's client replaces by HOST:PORT."""
        return f"${{{self._property}}}"

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the default for `address` in a JVM without the property: the variable, else the first gateway."""
        return {self._property: f"${{env.{self._variable}:-{self.gateways[0]}}}"}

    def begin(self) -> None:
        """Start the relay, unless it runs, and tell this process's JVM. Needs PySpark."""
        from pyspark import SparkContext

        address = relay_to(self.gateways, self.ca)
        if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            os.environ[self._variable] = address
            return
        SparkContext._ensure_initialized()
        jvm: Any = SparkContext._jvm
        jvm.java.lang.System.setProperty(self._property, address)


__all__ = ["RelayPlace"]
