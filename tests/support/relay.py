"""A TCP relay between a node and SuperLink: counts, records and cuts the link."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_BLOCK = 65_536  # bytes


class Relay:
    """Hands every connection on to a target; a context manager.

    Parameters
    ----------
    target
        Host and port of the server.
    record
        Whether all bytes are kept, see :meth:`recorded_up`.
    host
        Address of this machine on which the relay listens.

    Attributes
    ----------
    address
        Host and port where the relay listens.
    bytes_up, bytes_down
        Bytes handed from clients to the target, and back.
    connections
        Connections that came so far.
    """

    def __init__(
        self, target: tuple[str, int], record: bool = False, host: str = "127.0.0.1"
    ) -> None:
        self.target = target
        self.bytes_up = self.bytes_down = self.connections = 0
        self._record = record
        self._up: list[bytearray] = []
        self._down: list[bytearray] = []
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = self._closed = False
        self._limit: int | None = None
        self._server = socket.create_server((host, 0))
        port = self._server.getsockname()[1]
        self.address: tuple[str, int] = (host, port)

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        self._flowing.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._drop()

    def cut(self, *, silently: bool = False) -> None:
        """Cut the link until :meth:`restore`.

        Parameters
        ----------
        silently
            Nothing arrives any more, and neither side is told, as when a cable is
            pulled; else connections are reset and new ones are closed at once.
        """
        if silently:
            self._flowing.clear()
        else:
            self._refusing = True
            self._drop()

    def cut_after(self, count: int) -> None:
        """Cut the link silently when so many more bytes have gone up."""
        with self._lock:
            self._limit = self.bytes_up + count

    @property
    def is_cut(self) -> bool:
        return self._refusing or not self._flowing.is_set()

    def restore(self) -> None:
        """Let everything pass again; what was sent into a silent cut arrives late."""
        self._refusing = False
        self._flowing.set()

    def recorded_up(self) -> list[bytes]:
        """Return what clients sent, per connection."""
        with self._lock:
            return [bytes(part) for part in self._up]

    def recorded_down(self) -> list[bytes]:
        """Return what the target sent, per connection."""
        with self._lock:
            return [bytes(part) for part in self._down]

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flowing.wait()
        try:
            if self._refusing:
                raise ConnectionRefusedError
            target = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        up, down = bytearray(), bytearray()
        with self._lock:
            self._sockets |= {client, target}
            self.connections += 1
            self._up.append(up)
            self._down.append(down)
        ends = [(client, target, up, True), (target, client, down, False)]
        for end in ends:
            threading.Thread(target=self._pump, args=end, daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, kept: bytearray, up: bool
    ) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK):
                self._flowing.wait()
                sink.sendall(block)
                with self._lock:
                    if self._record:
                        kept += block
                    if up:
                        self.bytes_up += len(block)
                        if self._limit is not None and self.bytes_up >= self._limit:
                            self._limit = None
                            self._flowing.clear()
                    else:
                        self.bytes_down += len(block)
        _close(source, sink)
        with self._lock:
            self._sockets -= {source, sink}

    def _drop(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        _close(*sockets)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
