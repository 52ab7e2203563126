"""A proxy before a real HTTP server, which loses answers: what a gateway does that gives up on a request too early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fate = Literal["answered", "lost", "refused"]
"""Of a request: forwarded and answered; forwarded, and answered with 503; answered with 503 alone."""


@dataclass
class Gateway:
    """Loses the answers of so many requests that may change something, and forwards all others. As `fate_of`."""

    left: int = 0

    def lose(self, count: int) -> None:
        """The next so many."""
        self.left += count

    def fate_of(self, method: str, path: str, number: int) -> Fate:
        """What becomes of a request."""
        if method != "POST" or not self.left:
            return "answered"
        self.left -= 1
        return "lost"


@contextmanager
def faulty_proxy(behind: str, fate_of: Callable[[str, str, int], Fate]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The proxy's address, and the (method, path) of each request so far. behind: the server's; 503 while it is away.

    fate_of: of a request by its method, its path and its number from 1.
    """
    seen: list[tuple[str, str]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                seen.append((self.command, self.path))
                fate = fate_of(self.command, self.path, len(seen))
            status, answer, content = 503, b"upstream is busy", "text/plain"
            if fate != "refused":
                connection = HTTPConnection(urlsplit(behind).netloc, timeout=60)
                headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                with suppress(OSError, HTTPException):  # the server is away
                    connection.request(self.command, self.path, body, headers)
                    response = connection.getresponse()
                    whole = response.read()
                    if fate == "answered":
                        status, answer, content = response.status, whole, response.headers.get("Content-Type", content)
                connection.close()
            self.send_response(status)
            self.send_header("Content-Type", content)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
