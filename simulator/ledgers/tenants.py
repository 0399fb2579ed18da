"""Lives with authorisation and quotas: bookies demand logins, one client is of another tenant, space is limited.

All ledgers are of namespace `default`, which the clients of the other actors may use. The stranger knows keys and
digests of their ledgers, and sends every kind of request. Not here: what bookies may answer it
(`simulator/engine/checkers/tenants.py`).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.cluster import Client
from buckram.config import AuthConfig, TlsConfig
from buckram.core.security.acl import Acl
from buckram.core.security.tokens import Token, sign
from buckram.core.streams.names import DEFAULT_NAMESPACE
from buckram.core.wire.messages import Add, BatchRead, Force, ListEntries, Read, ReadLac, Request, WriteLac
from buckram.errors import BuckramError
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.tree.layout import SECURITY
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.net.security.logins import TokenLogin
from buckram.runtime.net.security.secure_network import SecureNetwork
from buckram.seams import Network
from buckram.types import LedgerId
from simulator.engine.checkers.facts import LedgerFacts
from simulator.engine.checkers.judge import describe
from simulator.engine.plan import Plan
from simulator.engine.world import Died, World
from simulator.ledgers.workload.stage import Actor, Stage

STRANGER = "x1"
_OWN, _OTHER = "token:own", "token:other"
_KEY_ID = "000001-sim"
_EXPIRES_S = 10e9
LIFTED_S = 5.0
"""Time within which bookies learn that a quota was removed, seconds."""


def draw_tenants(plan: Plan) -> None:
    """Draw whether a life has tenants and a quota, from random numbers of its own, so that it changes nothing else."""
    rng = random.Random(f"tenants {plan.seed}")
    if plan.liar:
        return  # a liar's answers do not show whether bookies check permissions
    if rng.random() < 0.12:
        plan.tenants = rng.choice(("none", "none", "read"))
    if rng.random() < 0.12:
        plan.quotas = rng.choice(
            ({"stored_bytes": 3000}, {"stored_bytes": 30_000}, {"in_entries_per_s": 20}, {"in_bytes_per_s": 60_000})
        )
        plan.entries = max(plan.entries, 12)
        # An add waits for its rate, and its client for the add.
        net = plan.configs.net
        plan.configs.net = replace(net, request_timeout_s=max(net.request_timeout_s, 3.0))


class Tenants:
    """The tenants and quotas of a life. Every method does nothing if the plan has neither."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.plan, self.world = stage, stage.plan, stage.world

    async def prepare(self, store: TreeStore) -> None:
        """Set up keys, grants and quotas, before the first bookie starts."""
        if self.plan.tenants:
            await self._ask_who_is_there(store)
        if self.plan.quotas:
            await TenantStore(store).set_quotas(DEFAULT_NAMESPACE, self.plan.quotas)

    async def _ask_who_is_there(self, store: TreeStore) -> None:
        private, public = _signing_key(random.Random(f"signing key {self.plan.seed}"))
        await store.keys.create(f"{store.own}/{SECURITY}/keys/{_KEY_ID}", public)
        acl = Acl().granting(_OWN, DEFAULT_NAMESPACE, ("read", "append", "create", "delete"))
        acl = acl.granting(_OTHER, "other", ("read", "append", "create", "delete", "admin"))
        if self.plan.tenants == "read":
            acl = acl.granting(_OTHER, DEFAULT_NAMESPACE, ("read",))
        await SecurityStore(store).change_acl(lambda _: acl)
        cluster = await store.instance_id()
        texts = {}
        for who in (_OWN, _OTHER):
            token = Token(who, who.partition(":")[2], (), 0.0, _EXPIRES_S)
            texts[who] = sign(token, cluster, _KEY_ID, private)
        self.world.judge.facts.strangers[STRANGER] = frozenset({"read"} if self.plan.tenants == "read" else ())
        _ask(self.world, texts)

    async def lift_quotas(self) -> None:
        """Remove the quotas, and wait until bookies know."""
        if self.plan.quotas:
            store = self.world.store(self.world.loop.world, self.world.rng)
            await TenantStore(store).set_quotas(DEFAULT_NAMESPACE, dict.fromkeys(self.plan.quotas))
            await asyncio.sleep(self.plan.pace.deadline_s(LIFTED_S, metadata_requests=4))
            await store.close()


def _ask(world: World, texts: dict[str, str]) -> None:
    """Make bookies demand tokens from now on, and give each client its own."""

    def way_in(host: str, network: Network) -> Network:
        text = texts[_OTHER if host == STRANGER else _OWN]
        return SecureNetwork(network, None, login=lambda: TokenLogin(text))

    world.way_in = way_in
    world.door = lambda: ConnectionGate(TlsConfig(), AuthConfig(logins="token", authorisation="on"))


def _signing_key(rng: random.Random) -> tuple[bytes, bytes]:
    """Return a key pair that the seed decides: private and public PEM."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class StrangerActor(Actor):
    """A client of another tenant, which sends bookies every kind of request about a ledger."""

    async def run(self) -> None:
        client = await self.connect()
        if client is None:
            return
        for _ in range(self.rng.choice((2, 4, 6))):
            await self.nap(self.plan.busy_s)
            if self.stage.over or not self.stage.ledgers:
                continue
            try:
                ledger_id = self.rng.choice(self.stage.ledgers)
                await self.world.join(self.process, self._ask(client, ledger_id), "stranger")
            except Died:
                self.note("died")
                return

    async def _ask(self, client: Client, ledger_id: LedgerId) -> None:
        facts = self.judge.facts.ledger(ledger_id)
        if facts.metadata is None or facts.digest is None or facts.key is None:
            return
        requests = _everything(facts, self.rng.choice(sorted(facts.pushed) or [0]))
        for bookie in facts.metadata.last_fragment.ensemble:
            for request in self.rng.sample(requests, 4):
                try:
                    reply = await client.services.pool.call(bookie, request)
                    self.note(f"asks {bookie} about ledger {ledger_id}: {type(request).__name__}, {reply.code.name}")
                except BuckramError as error:
                    self.note(f"asks {bookie}: {describe(error)}")


def _everything(facts: LedgerFacts, entry: int) -> list[Request]:
    """Return one request of every kind about a ledger, with its key, as a client that knows the key could send."""
    assert facts.digest is not None
    assert facts.key is not None
    ledger, key, end = facts.ledger, facts.key, len(facts.pushed)
    body = facts.digest.seal(ledger, end, end - 1, 1, b"x")
    return [
        Read(ledger, entry),
        BatchRead(ledger, entry, 3, 10_000),
        ReadLac(ledger),
        ListEntries(ledger),
        Read(ledger, entry, True, key),
        Add(ledger, end, key, body),
        WriteLac(ledger, end, key, facts.digest.seal_lac(ledger, end)),
        Force(ledger),
    ]


__all__ = ["LIFTED_S", "STRANGER", "StrangerActor", "Tenants", "draw_tenants"]
