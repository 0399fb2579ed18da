"""Gateways on the simulated network: the real one, with uvicorn's connections as protocols of simulated transports.

The only part that is replaced is what waits for connections on sockets. Heads, bodies, limits of connections, and the
orderly end of a server are production code, so answers can be lost, bodies cut and connections reset anywhere.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.seams import Network
from buckram.serve.gateway import server as gateway_server
from buckram.serve.gateway.objects import object_pages
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.limits import HTTP_LIMITS, GatewayLimits
from buckram.serve.gateway.streams import tails
from buckram.serve.http.server import HttpServer, Listening
from buckram.serve.webhdfs import server as webhdfs_server
from buckram.serve.webhdfs.limits import FileLimits
from buckram.state.objects import index_client, objects, values, writing
from simulator.engine.planting import patched
from simulator.engine.world import Died
from simulator.gateways.faults import STOP
from simulator.gateways.plan import Sizes
from simulator.gateways.stage import Stage

PORT = 8080
_SMALL_BYTES = 500
"""Bytes up to which objects share ledgers."""
_HTTP = replace(HTTP_LIMITS, drain_s=3)
NAMESPACE = "default"


class SimListening(Listening):
    """The address of a gateway in the simulated network."""

    def __init__(self, network: Network, host: str) -> None:
        super().__init__(())
        self.network, self.host = network, host

    @property
    def address(self) -> tuple[str, int]:
        return self.host, PORT


class _Listed(dict[Any, None]):
    """Connections in the order of their beginnings: those of a set have that of their addresses in memory."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class SimHttpServer(HttpServer):
    """An HttpServer whose connections come from the simulated network."""

    _listening: SimListening

    async def start(self) -> None:
        server, config = self._server, self._server.config
        config.load()
        server.lifespan = config.lifespan_class(config)
        server.server_state.connections = cast("Any", _Listed())
        make = partial(
            cast("Any", config.http_protocol_class), config=config, server_state=server.server_state, app_state={}
        )
        host, port = self._listening.address
        self._listener = await self._listening.network.listen(host, port, make)
        self._stopping = asyncio.Event()
        server.servers = []
        self._serving = self._scope.spawn(self._until_closed(), "serve")

    async def _until_closed(self) -> None:
        await self._stopping.wait()
        await self._listener.close()
        await self._server.shutdown()

    async def close(self) -> None:
        if self._serving is not None:
            self._stopping.set()
        await super().close()


@contextmanager
def served_without_sockets(sizes: Sizes, seed: int) -> Iterator[None]:
    """Have gateways serve in the simulated network, with small limits, and with ids that the seed decides."""
    rng = random.Random(f"secrets {seed}")

    def token_hex(size: int = 32) -> str:
        return rng.randbytes(size).hex()

    def token_bytes(size: int = 32) -> bytes:
        return rng.randbytes(size)

    with patched(
        (gateway_server, "HttpServer", SimHttpServer),
        (tails, "_PAGE_BYTES", sizes.behind_bytes),
        (object_pages, "_PAGE", sizes.listed),
        (webhdfs_server, "FileLimits", partial(FileLimits, page=sizes.listed)),
        (index_client, "TURN_S", 0.2),
        *((module, "SMALL_BYTES", _SMALL_BYTES) for module in (writing, values, objects)),
        (secrets, "token_hex", token_hex),
        (secrets, "token_bytes", token_bytes),
    ):
        yield


def limits_of(sizes: Sizes) -> GatewayLimits:
    """Return the limits of the gateways of a life."""
    return GatewayLimits(
        append_wait_s=sizes.append_wait_s,
        writer_idle_s=sizes.writer_idle_s,
        tails=sizes.tails,
        tail_ring_bytes=sizes.ring_bytes,
        tail_gather_s=sizes.gather_s,
        page_bytes=sizes.page_bytes,
        heartbeat_s=3.0,
        stuck_s=5.0,
        lease_wait_s=5.0,
    )


class GatewayActor:
    """One host with a gateway, which is started again after its process died or stopped."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.rng = random.Random(f"{stage.plan.seed} gateways {host}")
        self._stop = f"{STOP} {host}"

    async def run(self) -> None:
        while not self.stage.finished:
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._serve(client), "gateway")
            except Died:
                if self.stage.waiting.get(self.host):
                    self.world.report.situation("a gateway died with a request")
            except BuckramError as error:
                self.world.trace.note(self.host, f"does not serve: {error!r}")
            self.stage.serving.pop(self.host, None)
            await asyncio.sleep(self.rng.random() * 1.5)

    async def _serve(self, client: Client) -> None:
        process, plan = self.world.processes[self.host], self.stage.gateways
        listening = SimListening(self.world.fabric.face(process), self.host)
        gateway = Gateway(client, listening, open_to_all=True, limits=limits_of(plan.sizes), http_limits=_HTTP)
        try:
            await gateway.start()
            self.stage.serving[self.host] = gateway
            self.world.trace.note(self.host, f"serves as {gateway.peers.me.id}")
            while not self.stage.finished and not plan.cluster.notes.pop(self._stop, 0):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        finally:
            self.stage.serving.pop(self.host, None)
            await gateway.close()
            await client.close()
        if not self.stage.finished:
            self.world.report.situation("a gateway stopped in order")


__all__ = ["NAMESPACE", "PORT", "GatewayActor", "SimHttpServer", "limits_of", "served_without_sockets"]
