"""A server of databases as an earlier release has it, for clients of this one."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def without_history(url: str) -> Iterator[str]:
    """The address of a proxy that leaves out the header with the history, as a server of an earlier release does."""

    class Older(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with urllib.request.urlopen(url + self.path, body) as answer:
                assert answer.headers["Buckram-History"]
                found = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

    with ThreadingHTTPServer(("127.0.0.1", 0), Older) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()
