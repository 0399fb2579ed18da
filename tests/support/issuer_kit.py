"""An issuer of OIDC on this machine: its keys rotate, and it can be down, slow, huge or somebody else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "buckram"


class Key:
    """A key that signs, and what is published of it."""

    def __init__(self, key_id: str, algorithm: str = "EdDSA", bits: int = 2048) -> None:
        self.key_id, self.algorithm = key_id, algorithm
        public: Any
        if algorithm == "RS256":
            self.private: Any = rsa.generate_private_key(65537, bits)
            public = RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        elif algorithm == "ES256":
            self.private = ec.generate_private_key(ec.SECP256R1())
            public = ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        else:
            self.private = ed25519.Ed25519PrivateKey.generate()
            public = OKPAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        self.published: dict[str, Any] = {**public, "kid": key_id, "use": "sig", "alg": algorithm}


class FakeIssuer:
    """`how`: ok, down, slow (a byte now and then), huge, or elsewhere (a redirect)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = [Key("first")]
        self.how = "ok"
        self.asked = 0
        self.claimed = url
        """What its discovery document says that its name is."""
        self.ended = threading.Event()

    def rotate(self, key: Key) -> None:
        """From now on only this key is published and signs."""
        self.keys = [key]

    def document(self, path: str) -> bytes:
        if path.endswith("/openid-configuration"):
            return json.dumps({"issuer": self.claimed, "jwks_uri": f"{self.url}/keys"}).encode()
        return json.dumps({"keys": [key.published for key in self.keys]}).encode()

    def claims(self, subject: str = "alice", **more: Any) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600, **more}

    def token(self, subject: str = "alice", *, key: Key | None = None, **more: Any) -> str:
        """A token; a claim that is None is left out."""
        signing = key or self.keys[0]
        said = {name: value for name, value in self.claims(subject, **more).items() if value is not None}
        return jwt.encode(said, signing.private, signing.algorithm, {"kid": signing.key_id})


@contextmanager
def issuing() -> Iterator[FakeIssuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked += self.path.endswith("/keys")
            if found.how == "down":
                self.send_error(503)
                return
            if found.how == "elsewhere":
                self.send_response(302)
                self.send_header("Location", f"{found.url}/other")
                self.end_headers()
                return
            body = found.document(self.path)
            if found.how == "huge":
                body = body[:-1] + b', "more": "' + b"x" * 1_000_000 + b'"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if found.how == "slow":
                self.wfile.write(body[:1])
                found.ended.wait(60)
                return
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = FakeIssuer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
