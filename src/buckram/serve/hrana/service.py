"""Service: databases and the open streams, WebSockets and files of their clients, without an address of its own.

`serve/hrana/server.py` serves it at a port, `serve/gateway/database_pages.py` within a gateway. Not here:
authentication of HTTP requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response

from buckram.config import TlsConfig
from buckram.core.security.principal import Principal
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.hrana.database_access import DatabaseAccess
from buckram.serve.hrana.database_files import Exchange
from buckram.serve.hrana.databases import Databases
from buckram.serve.hrana.execution import OFFSET, Execution, with_errors
from buckram.serve.hrana.forwarding import DatabaseServerRegistry, Forwarder
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.protocol.requests import Sizes
from buckram.serve.hrana.streams import Streams
from buckram.serve.hrana.targets import Reading, Target
from buckram.serve.hrana.websocket_streams import Places
from buckram.serve.hrana.websockets import Asking, Sockets
from buckram.serve.http.body import while_connected
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.origins import Origins
from buckram.serve.http.spooled_files import NOT_LOADED
from buckram.serve.http.streamed_answers import while_allowed
from buckram.state.db.commits.write_queue import CALLER


class Service:
    """Executes requests, sends backups and takes files. `start`, then `end_waiting`, then `close`."""

    def __init__(
        self,
        databases: Databases,
        *,
        access: DatabaseAccess,
        origins: Origins,
        ca: str,
        limits: HranaLimits,
        http_limits: HttpLimits,
        refused: Callable[[str, str], None],
    ) -> None:
        """`refused`: called when a statement is refused, with the name of its principal and the error's code.

        `access`, `origins`: decide who may open WebSockets; HTTP requests are checked by the caller. `ca`: file of the
        authorities of other servers' certificates; empty: those that this system trusts. Raises ConfigError.
        """
        self.databases = databases
        self.streams = Streams(limits)
        self._others = DatabaseServerRegistry(databases.store, databases.announce, access.vouch)
        trusted = TlsFiles(TlsConfig("required", ca), server_side=False).context
        self._forwarder = Forwarder(databases.announce, self._others, limits, trusted)
        sizes = Sizes(limits.requests, limits.steps)
        places = Places(databases, self.streams, self._forwarder, limits, sizes, refused)
        self.sockets = Sockets(places, Asking(access, origins), http_limits)
        self.exchange = Exchange(databases, self._forwarder, limits, OFFSET)
        self._execution = Execution(places)

    async def start(self) -> None:
        """Show this server to others, and open the databases that were named."""
        await self._others.start()
        await self.databases.start()

    async def end_waiting(self) -> None:
        """Close idle streams, and WebSockets after their pending requests; call it before the server closes."""
        await self.streams.close_idle()
        await self.sockets.close()

    async def close(self) -> None:
        """Close all streams and databases; after the server. Idempotent."""
        await self.streams.close()
        await self._forwarder.close()
        await self.databases.close()
        await self._others.close()

    async def post(self, request: Request, target: Target, body: bytes) -> Response:
        """The answer to a request whose body has been read. Raises HttpProblem."""
        return await while_connected(request, self._execution.answer(request, target, body))

    async def backup(self, reading: Reading, principal: Principal, over: Callable[[], str]) -> Response:
        """Return the database as a file, cut off when `over` returns a reason. Raises HttpProblem."""
        return await with_errors(self.exchange.backup(reading, principal, over))

    async def load(
        self,
        request: Request,
        reading: Reading,
        principal: Principal,
        pieces: Callable[[int], AsyncIterator[bytes]],
        over: Callable[[], str],
    ) -> Response:
        """Fill an empty database; `pieces` yields the body, at most so many bytes. Raises HttpProblem."""
        CALLER.set(str(principal))

        def allowed(most: int) -> AsyncIterator[bytes]:
            return while_allowed(pieces(most), over, NOT_LOADED)

        return await with_errors(self.exchange.load(request, reading, principal, allowed))
