"""A way to a server that can be shut and opened again, while the server itself forgets nothing."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

CHUNK_BYTES = 65_536


class Gate:
    """Forwards what comes to its port of 127.0.0.1 to another. While it is shut, connections are refused."""

    def __init__(self, target: int) -> None:
        self._target, self._ends = target, list[socket.socket]()
        self._listener = _listener(0)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Gate:
        self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()

    def shut(self) -> None:
        """Breaks every connection, and takes no more."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes who waits in it
            end.close()
        self._ends.clear()

    def open(self) -> None:
        """Takes connections again, on the same port."""
        self._listener = _listener(self.port)
        self._watch()

    def _watch(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _listener(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=64)


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
