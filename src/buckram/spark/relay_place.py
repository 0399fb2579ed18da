"""How the driver's JVM learns where the relay is. Settings go to other machines, too, and the relay is on this one.

So settings name a property. A JVM that runs already is given it; one that is still to be started gets a variable of the
environment. Where there is neither, the first gateway stands in for the relay. Not here: the relay (`relay.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from buckram.spark.relay import relay_to


class RelayPlace(NamedTuple):
    """Where this process's relay to these gateways is, in settings."""

    gateways: tuple[str, ...]
    ca: str = ""
    """The file of who signed their certificates; empty: they have no TLS."""

    @property
    def _property(self) -> str:
        # Each set of gateways has its own: one process may use several, with one JVM.
        return f"buckram.relay.{hashlib.sha256(','.join((*self.gateways, self.ca)).encode()).hexdigest()[:12]}"

    @property
    def _variable(self) -> str:
        return self._property.replace(".", "_").upper()

    @property
    def address(self) -> str:
        """What Hadoop's client replaces by HOST:PORT."""
        return f"${{{self._property}}}"

    @property
    def settings(self) -> Mapping[str, str]:
        """What `address` is in a JVM without the property."""
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
