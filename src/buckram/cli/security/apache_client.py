"""`buckram apache-client`: lets Apache's client and shell into a cluster of `buckram up --secure --zookeeper`.

The files of one client are below DIR/security/apache/NAME: a certificate of the cluster's authority and its key, a
login of ZooKeeper, and the settings and flags of the JVM that name them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from buckram.cli.security.token import state_text, time_text
from buckram.cli.shared import values
from buckram.cli.shared.options import json_option, run_async
from buckram.cli.shared.output import emit, table
from buckram.cli.up.cluster_directory import ClusterDirectory
from buckram.cli.up.security_files import FOLDER, LOGIN_MODULE, ZOOKEEPER_USER, SecureDirectory, SecureStore
from buckram.config import TlsConfig
from buckram.core.security.tokens import need_extra
from buckram.core.streams.names import DEFAULT_NAMESPACE
from buckram.errors import ChildFailed, ConfigError, InvalidArgument
from buckram.metadata.default import DATA_DIR
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.uri import open_store, parse
from buckram.metadata.zookeeper.access_lists import may_enter, share_tree
from buckram.metadata.zookeeper.uri import ZkUri
from buckram.runtime.net.security.certificate_files import TlsFiles

PREFIX = "apache-"
"""Prefix of the certificate's subject and of the ZooKeeper login, so that a client gets neither the grants of another
principal nor the cluster's own user."""
PERMISSIONS = ("read", "append")
"""Permissions that bookies check for such a client; ledgers are created and deleted in ZooKeeper."""
LOGIN_S = 60.0
LOGS = ("buckram.zookeeper", "buckram.zookeeper.kazoo")
POLL_S = 0.2
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_DAY_S = 86_400.0
FILES = ("client.conf", "jvm.options", "jaas.conf", "client.pem", "client.key")
SETTINGS = {
    "metadataServiceUri": "{uri}",
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsClientAuthentication": "true",
    "tlsHostnameVerificationEnabled": "true",
    "tlsCertificatePath": "{folder}/client.pem",
    "clientKeyStoreType": "PEM",
    "clientKeyStore": "{folder}/client.key",
    "clientTrustStoreType": "PEM",
    "clientTrustStore": "{ca}",
}
"""Settings of Apache's client and of its shell; {uri}, {folder} and {ca} are filled in."""
OPTIONS = (
    "-Dzookeeper.client.secure=true",
    "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
    "-Dzookeeper.ssl.trustStore.location={ca}",
    "-Dzookeeper.ssl.trustStore.type=PEM",
    "-Dzookeeper.fips-mode=false",
    "-Djava.security.auth.login.config={folder}/jaas.conf",
)
"""Flags of its JVM. FIPS mode, the default of ZooKeeper's client, refuses DIGEST-MD5, which goes through TLS here."""


# -- the files, and the login of ZooKeeper ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApacheAccess:
    """The cluster below a directory of `buckram up --secure --zookeeper`."""

    guard: SecureDirectory
    store: SecureStore
    metadata: str

    @classmethod
    def of(cls, directory: str) -> ApacheAccess:
        """Open the access of a cluster's directory. Raises ConfigError if Apache's software cannot enter the cluster,
        or needs no such files."""
        need_extra("buckram apache-client")
        root = Path(directory).absolute()
        place = ClusterDirectory.read(root)
        if not place.made:
            raise ConfigError(f"{root}: no cluster of `buckram up`; name its directory with --data")
        if not place.secure:
            raise ConfigError(f"{root}: made without --secure, so Apache's client needs no certificate and no login")
        if place.kind != "zookeeper":
            raise ConfigError(
                f"{root}: its metadata are not in ZooKeeper, which Apache's client needs; make a cluster with "
                "`buckram up --secure --zookeeper`"
            )
        guard = SecureDirectory(root / FOLDER)
        return cls(guard, SecureStore(guard, place.kind), place.metadata)

    def folder(self, name: str) -> Path:
        return self.guard.path / "apache" / name

    @property
    def _zookeeper(self) -> ZkUri:
        found = parse(self.metadata)
        assert isinstance(found, ZkUri)
        return found

    @property
    def _hosts(self) -> str:
        return ",".join(self._zookeeper.hosts)

    @property
    def _tls(self) -> Callable[[], ssl.SSLContext]:
        return TlsFiles(TlsConfig("required", str(self.guard.ca)), server_side=False).context

    async def _opened(self) -> SecurityStore:
        os.environ.update(self.store.settings())
        return SecurityStore(await open_store(self.metadata))

    async def issue(self, name: str, lasts_s: float) -> dict[str, Any]:
        """Make the files, and admit clients that use them. Raises InvalidArgument for a name that is in use, and
        ChildFailed if `up` does not start ZooKeeper again."""
        from buckram.runtime.net.security.certificate_authority import Authority, write_private

        user, folder = PREFIX + _checked(name), self.folder(name)
        security = await self._opened()
        try:
            if any(one["subject"] == user and not one["withdrawn"] for one in await security.certificates()):
                cure = f"`buckram apache-client withdraw {name}` takes it back"
                raise InvalidArgument(f"{name}: has a certificate; {cure}")
            now = time.time()
            share_tree(self._hosts, self._zookeeper.root, ZOOKEEPER_USER, self.store.password, self._tls)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            pair = Authority(self.guard.path).client("client", user, days=lasts_s / _DAY_S, folder=folder)
            await security.note_certificate(pair.serial, user, now, now + lasts_s)
            await security.change_acl(lambda acl: acl.granting(f"cert:{user}", DEFAULT_NAMESPACE, PERMISSIONS))
            await leave_note(security.store, "certificate", f"cert:{user}", detail="issued for Apache's client")
        finally:
            await security.store.close()
        password = secrets.token_urlsafe(32)
        login = f'Client {{ {LOGIN_MODULE} required username="{user}" password="{password}"; }};\n'
        write_private(folder / "jaas.conf", login.encode())
        values = {"uri": self._uri, "folder": str(folder), "ca": str(self.guard.ca)}
        settings = "".join(f"{key}={value.format(**values)}\n" for key, value in SETTINGS.items())
        write_private(folder / "client.conf", settings.encode())
        write_private(folder / "jvm.options", "".join(f"{one.format(**values)}\n" for one in OPTIONS).encode())
        self.store.change_login(user, password)
        await self._await_login(user, password, lets_in=True)
        return {
            "name": name, "principal": f"cert:{user}", "serial": f"{pair.serial:x}", "expires_s": round(now + lasts_s),
            "folder": str(folder), "metadata": self._uri,
        }  # fmt: skip

    @property
    def _uri(self) -> str:
        """Return the metadata URI in the form that Apache's software reads."""
        return f"zk+hierarchical://{';'.join(self._zookeeper.hosts)}{self._zookeeper.root}"

    async def issued(self) -> list[dict[str, Any]]:
        """Return the certificates issued to Apache clients, oldest first."""
        security = await self._opened()
        try:
            found = await security.certificates()
        finally:
            await security.store.close()
        ours = [one for one in found if one["subject"].startswith(PREFIX)]
        for one in ours:
            one["name"] = one["subject"].removeprefix(PREFIX)
        return sorted(ours, key=lambda one: float(one["issued_s"]))

    async def withdraw(self, name: str) -> list[str]:
        """Take certificate, login and grant back; return the serial numbers. Raises InvalidArgument if there is nothing
        to take back."""
        user = PREFIX + _checked(name)
        security = await self._opened()
        try:
            # All of the name, so that a withdrawal that was cut short is finished by the next one.
            serials = [str(one["serial"]) for one in await security.certificates() if one["subject"] == user]
            password = self.store.logins().get(user)
            if not serials and password is None:
                raise InvalidArgument(f"{name}: nothing was issued to it; `buckram apache-client list` shows what was")
            for serial in serials:
                await security.withdraw_certificate(int(serial, 16))
            await security.change_acl(lambda acl: acl.revoking(f"cert:{user}", DEFAULT_NAMESPACE, PERMISSIONS))
            await leave_note(security.store, "certificate", f"cert:{user}", detail="withdrawn")
        finally:
            await security.store.close()
        if password is not None:
            self.store.change_login(user, None)
            await self._await_login(user, password, lets_in=False)
        shutil.rmtree(self.folder(name), ignore_errors=True)
        return serials

    async def _await_login(self, user: str, password: str, *, lets_in: bool) -> None:
        """Wait until ZooKeeper has been started again with its changed users. Raises ChildFailed after LOGIN_S
        seconds."""
        limit = time.monotonic() + LOGIN_S
        for name in LOGS:  # connections that end and logins that are refused are expected here
            logging.getLogger(name).setLevel(logging.CRITICAL)
        while not await (self._enters(user, password) if lets_in else self._refused(user, password)):
            if time.monotonic() > limit:
                state = "is not in force yet" if lets_in else "is still in force, or ZooKeeper does not answer"
                raise ChildFailed(
                    f"the login {user} of ZooKeeper {state} after {LOGIN_S:g} s: `buckram up` starts ZooKeeper again "
                    "when logins change. Check that it runs; the change is in force after its next start"
                )
            await asyncio.sleep(POLL_S)

    async def _enters(self, user: str, password: str) -> bool:
        return await may_enter(self._hosts, user, password, self._tls)

    async def _refused(self, user: str, password: str) -> bool:
        """By a server that serves, and not because none was there just then."""
        return (
            not await self._enters(user, password)
            and await self._enters(ZOOKEEPER_USER, self.store.password)
            and not await self._enters(user, password)
        )


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name[:60]!r}: a name needs 1 to 40 small letters, digits and dashes, such as pulsar-1")
    return name


# -- the commands -----------------------------------------------------------------------------------------

data_option = click.option(
    "--data",
    "directory",
    default=DATA_DIR,
    show_default=True,
    metavar="DIR",
    help="Directory of the cluster that `buckram up` made.",
)


@click.group("apache-client")
def apache_client() -> None:
    """Let Apache's client and shell into a secured cluster.

    For clusters of `buckram up --secure --zookeeper`, on their machine. The holder of one can change the metadata of
    all ledgers of the cluster: docs/explanation/security.md says what that allows.
    """


@apache_client.command("issue")
@click.argument("name")
@click.option(
    "--expires", default="365d", show_default=True, metavar="TIME", help="Time for which the certificate is valid."
)
@data_option
@json_option
def issue(name: str, expires: str, directory: str, as_json: bool) -> None:
    """Make a certificate and a login, and say where they are.

    The files are in DIR/security/apache/NAME, for their owner only. Ledgers that belong to no stream, or to namespace
    default, may be read and appended to. ZooKeeper is started again, which takes seconds.

    \b
    Example:
      buckram apache-client issue pulsar
    """
    lasts = values.duration("--expires", expires)
    if lasts <= 0:
        raise InvalidArgument(f"--expires {expires}: needs a time such as 365d")
    made = run_async(ApacheAccess.of(directory).issue(name, lasts))
    if as_json:
        emit(made)
        return
    click.echo(f"{made['principal']}, certificate {made['serial']}, until {time_text(made['expires_s'])}")
    click.echo(f"  settings of Apache's client, and of its shell: {made['folder']}/client.conf")
    click.echo(f"  flags of its JVM: {made['folder']}/jvm.options")


@apache_client.command("list")
@data_option
@json_option
def list_(directory: str, as_json: bool) -> None:
    """List the issued certificates, including withdrawn ones."""
    found = run_async(ApacheAccess.of(directory).issued())
    if as_json:
        keys = ("name", "serial", "issued_s", "expires_s", "withdrawn")
        emit({"clients": [{key: one[key] for key in keys} for one in found]})
        return
    rows = [(one["name"], one["serial"], time_text(one["expires_s"]), state_text(one, "withdrawn")) for one in found]
    table(("name", "certificate", "expires", "state"), rows)


@apache_client.command("withdraw")
@click.argument("name")
@data_option
@json_option
def withdraw(name: str, directory: str, as_json: bool) -> None:
    """Take certificate, login and grant of NAME back.

    The files of NAME are deleted. Bookies end its connections within seconds; ZooKeeper is started again and refuses
    its sessions.

    \b
    Example:
      buckram apache-client withdraw pulsar
    """
    serials = run_async(ApacheAccess.of(directory).withdraw(name))
    if as_json:
        emit({"name": name, "withdrawn": serials})
    else:
        click.echo(f"withdrawn: {name}, certificate {', '.join(serials)}")
