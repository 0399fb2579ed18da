"""Settings of Spark's Hadoop client by which checkpoints and files on a gateway survive gateways and drivers.

`configure(builder, "webhdfs://host:port/")` sets them, `buckram spark-conf` prints them. The driver's relay has an
address of its own machine, but settings go to other machines, too: so they name a Java property, which is set in a JVM
that runs already, while a JVM started later gets a variable of the environment. Where there is neither, the first
gateway takes the relay's place. Not here: the relay (`server.py`), the gateway's side (`serve/webhdfs/`), what is in a
checkpoint (`spark/checkpoints/contents.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from buckram.addresses import host_port
from buckram.errors import InvalidArgument
from buckram.runtime.net.security.logins import TOKEN_VARIABLE
from buckram.runtime.net.security.secure_network import tls_of_environment
from buckram.serve.webhdfs.limits import SCHEMES, TOKEN_PATH
from buckram.spark.relay.server import relay_to
from buckram.spark.relay.trust_store import certificate_in, java_options, relay_identity, write_trust_store

SERVICE = "buckram"
"""The host of paths when there are several gateways: webhdfs://buckram/NAMESPACE/PATH."""
_MOST = 16
_URI = re.compile(r"(?P<scheme>[a-z]+)://(?P<hosts>[^/?#]+)(?:/(?P<path>[^?#]*))?")
_HADOOP = "spark.hadoop."
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.{}FileSystemBasedCheckpointFileManager"
_MOVED = (4, 1)
"""First version of Spark whose file managers have a package of their own."""

_ALWAYS = {
    # Hadoop's client gives up at the first error otherwise. These are pairs of a pause in ms and how often.
    "dfs.http.client.retry.policy.enabled": "true",
    "dfs.http.client.retry.policy.spec": "200,25,1000,60",
    "dfs.webhdfs.socket.connect-timeout": "5s",
    "dfs.webhdfs.socket.read-timeout": "60s",
}
_SEVERAL = {
    "dfs.http.client.failover.max.attempts": "60",
    "dfs.http.client.failover.sleep.base.millis": "50",
    "dfs.http.client.failover.sleep.max.millis": "1000",
}
# A driver that dies while Spark records its first batch leaves a temporary file, which later starts would fail over.
_QUERY = {"spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false"}
REDACTED = "(?i)secret|password|token|access[.]?key|oauth2[.]credential"
"""Spark's own pattern of what it shows nowhere, and the key of the token."""
JAVA_OPTIONS = frozenset({"spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"})
OF_ENVIRONMENT = f"${{env.{TOKEN_VARIABLE}}}"
"""Placeholder that Hadoop's client replaces by the value of the variable."""


@dataclass(frozen=True, slots=True)
class FilesLocation:
    """Location of files: one gateway, or several of one cluster."""

    scheme: str
    addresses: tuple[str, ...]
    path: str

    @property
    def root(self) -> str:
        """Return the beginning of all paths, such as webhdfs://10.0.0.7:8080."""
        return f"{self.scheme}://{self.addresses[0] if len(self.addresses) == 1 else SERVICE}"

    @property
    def uri(self) -> str:
        """Return the full URI of the path, as Spark needs it."""
        return f"{self.root}/{self.path}"


def gateways(uri: str) -> FilesLocation:
    """Parse webhdfs://HOST:PORT[,HOST:PORT...]/PATH, or swebhdfs with TLS. Raises InvalidArgument."""
    found = _URI.fullmatch(uri)
    if found is None or found["scheme"] not in SCHEMES:
        raise InvalidArgument(
            f"{uri[:100]!r}: needs webhdfs://HOST:PORT/ (or swebhdfs:// with TLS), with a comma between gateways, as "
            "`buckram up` and `buckram gateway` print it"
        )
    addresses = tuple(dict.fromkeys(found["hosts"].split(",")))
    if len(addresses) > _MOST:
        raise InvalidArgument(f"{len(addresses)} gateways, the limit is {_MOST}; name some of them")
    for address in addresses:
        host, port = host_port(address, f"gateway {address[:60]!r}")
        if not host or not port:
            raise InvalidArgument(f"gateway {address[:60]!r}: needs HOST:PORT, such as 10.0.0.7:8080")
    return FilesLocation(found["scheme"], addresses, found["path"] or "")


def settings(
    uri: str,
    *,
    token: str = "",
    trust_store: Path | None = None,
    fewer_requests: bool = False,
    spark_version: tuple[int, int] = (4, 3),
    relay: RelayPlace | None = None,
) -> dict[str, str]:
    """Return Spark's settings for files on these gateways, by their names. Raises InvalidArgument.

    `token`: the token for gateways that need one; `${env.BUCKRAM_TOKEN}` is replaced by each process itself.
    `trust_store`: the authorities that the JVMs trust, for gateways with TLS, as `write_trust_store` makes it.
    `fewer_requests`: half the requests for each file of a checkpoint, by another of Spark's file managers; a repeated
    batch then keeps the state files of its first attempt. `relay`: that of this process, which its JVM uses before the
    gateways.
    """
    found = gateways(uri)
    if trust_store is not None:
        _need_tls(found)
    hadoop = dict(_ALWAYS)
    if len(found.addresses) > 1:
        hadoop |= _SEVERAL | _service(found, relay)
    if token:
        login = relay.address if relay is not None else found.addresses[0]
        hadoop |= {
            "dfs.webhdfs.oauth2.enabled": "true",
            "dfs.webhdfs.oauth2.access.token.provider": (
                "org.apache.hadoop.hdfs.web.oauth2.ConfCredentialBasedAccessTokenProvider"
            ),
            "dfs.webhdfs.oauth2.client.id": "spark",
            "dfs.webhdfs.oauth2.refresh.url": f"{SCHEMES[found.scheme]}://{login}{TOKEN_PATH}",
            "dfs.webhdfs.oauth2.credential": token,
        }
    chosen = {f"{_HADOOP}{name}": value for name, value in hadoop.items()} | _QUERY
    if token:
        chosen["spark.redaction.regex"] = REDACTED
    if trust_store is not None:
        chosen |= dict.fromkeys(JAVA_OPTIONS, java_options(trust_store))
    if fewer_requests:
        package = "checkpointing." if spark_version >= _MOVED else ""
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = _FILE_MANAGER.format(package)
    return chosen


def _need_tls(found: FilesLocation) -> None:
    if SCHEMES[found.scheme] != "https":
        raise InvalidArgument(
            f"{found.root}/: certificates are of use with swebhdfs:// only; `buckram gateway --tls-cert` serves it"
        )


def _service(found: FilesLocation, relay: RelayPlace | None) -> dict[str, str]:
    """Return the settings of one name for several gateways; the client tries the next if one does not answer."""
    known = {f"g{number}": address for number, address in enumerate(found.addresses, 1)}
    if relay is not None:
        known = {"relay": relay.address, **known}
    scheme = SCHEMES[found.scheme]
    return {
        "dfs.nameservices": SERVICE,
        f"dfs.ha.namenodes.{SERVICE}": ",".join(known),
        f"dfs.client.failover.proxy.provider.{SERVICE}": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        **{f"dfs.namenode.{scheme}-address.{SERVICE}.{name}": address for name, address in known.items()},
        **(relay.settings if relay is not None else {}),
    }


def configure(builder: Any, uri: str, *, token: str = "", tls_ca: str = "", fewer_requests: bool = False) -> Any:
    """Set on a SparkSession.Builder what files on these gateways need; returns the builder.

    With several gateways a relay in this process keeps each file until a gateway has it, so that no write or read of
    the driver fails when a gateway dies; in local mode no task's either. With swebhdfs:// it needs `tls_ca`.
    `uri`: webhdfs://HOST:PORT[,HOST:PORT...]/. Paths begin with webhdfs://HOST:PORT/, and with webhdfs://buckram/ where
    there are several gateways. `token`: for gateways with tokens; default what BUCKRAM_TOKEN says, which is then passed
    to executors. `tls_ca`: the PEM file of the authorities that Java is to trust, for swebhdfs://; default what
    BUCKRAM_CA says. It is added to the options of the JVMs, so set the builder's own options before.
    `fewer_requests`: see `buckram spark-conf --help`.
    Raises InvalidArgument, also for a session of a Spark Connect server (sc://), which is told when it starts; and
    ConfigError without PySpark or for a file that is of no use.
    """
    from buckram.spark.shared.pyspark_version import need_pyspark

    _need_own_jvm(builder)
    numbers = [int(part) for part in need_pyspark().split(".")[:2]]
    found = gateways(uri)
    if tls_ca:
        _need_tls(found)
    secured = SCHEMES[found.scheme] == "https"
    ca = (tls_ca or tls_of_environment(os.environ).ca) if secured else ""
    relay, known = None, b""
    if len(found.addresses) > 1 and (ca or not secured):
        relay = RelayPlace(found.addresses, ca)
        relay.begin()
        known = certificate_in(relay_identity()) if ca else b""
    inherited = os.environ.get(TOKEN_VARIABLE, "").strip()
    given = token or (OF_ENVIRONMENT if inherited else "")
    chosen = settings(
        uri,
        token=given,
        trust_store=write_trust_store(Path(ca), also=known) if ca else None,
        fewer_requests=fewer_requests,
        spark_version=(numbers[0], numbers[1]),
        relay=relay,
    )
    set_before = getattr(builder, "_options", {})
    for name in JAVA_OPTIONS & chosen.keys():
        chosen[name] = f"{set_before.get(name, '')} {chosen[name]}".strip()
    if not token and inherited:
        chosen[f"spark.executorEnv.{TOKEN_VARIABLE}"] = inherited
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def _need_own_jvm(builder: Any) -> None:
    remote = str(getattr(builder, "_options", {}).get("spark.remote", ""))
    if remote.startswith("sc:"):
        raise InvalidArgument(
            f"the session of {remote[:100]} is one of Spark Connect: its server reads these settings when it starts; "
            "put what `buckram spark-conf` prints into the server's spark-defaults.conf"
        )


# -- the address of the relay -----------------------------------------------------------------------------


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
