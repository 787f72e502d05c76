"""A relay that ends TLS on both sides, so that what a client sends can be read.

It shows the client a certificate that the client trusts, here SuperLink's own.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_BLOCK = 65_536  # bytes


class TlsRecorder:
    """Hands every connection on to a target and keeps what clients send, decrypted.

    Parameters
    ----------
    target
        Host and port of the server, which is known by a name in its certificate.
    certificate, key
        What clients are shown.
    authority
        Certificate of the authority that signed the server's.
    """

    def __init__(
        self, target: tuple[str, int], certificate: Path, key: Path, authority: Path
    ) -> None:
        self._target = target
        self._inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inward.load_cert_chain(certificate, key)
        self._outward = ssl.create_default_context(cafile=str(authority))
        for context in (self._inward, self._outward):
            context.set_alpn_protocols(["h2"])
        self._sent: list[bytearray] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> TlsRecorder:
        self._thread.start()
        server = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._inward)
        self._server = asyncio.run_coroutine_threadsafe(server, self._loop).result(30)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def sent(self) -> list[bytes]:
        """Return what clients have sent, per connection."""
        return [bytes(part) for part in self._sent]

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sent = bytearray()
        self._sent.append(sent)
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(
                *self._target, ssl=self._outward
            )
            await asyncio.gather(
                _pump(reader, far_writer, sent), _pump(far_reader, writer, None)
            )


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None
) -> None:
    with suppress(OSError):
        while block := await reader.read(_BLOCK):
            if kept is not None:
                kept += block
            writer.write(block)
            await writer.drain()
    writer.close()
