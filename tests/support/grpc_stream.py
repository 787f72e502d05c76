"""What a gRPC client sent over one connection: HTTP/2 frames, and their messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA = 0x0  # type of frame, RFC 9113
_PADDED = 0x8  # flag


@dataclass(frozen=True)
class Conversation:
    """All that a client sent over one connection."""

    messages: list[bytes]
    """The gRPC messages, as serialised."""
    other: list[bytes]
    """The payloads of frames that are no data: headers, settings, pings."""


def read(sent: bytes) -> Conversation:
    """Take the bytes of one connection apart; a last, cut-off frame is left out.

    Raises
    ------
    ValueError
        The bytes are not HTTP/2, or a message is compressed.
    """
    if not sent.startswith(_PREFACE):
        raise ValueError("no HTTP/2 connection")
    streams: dict[int, bytearray] = defaultdict(bytearray)
    other = []
    for kind, flags, stream, payload in _frames(sent[len(_PREFACE) :]):
        if kind != _DATA:
            other.append(payload)
            continue
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        streams[stream] += payload
    messages = [message for body in streams.values() for message in _messages(body)]
    return Conversation(messages, other)


def _frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    position = 0
    while position + 9 <= len(data):
        head = data[position : position + 9]
        length = int.from_bytes(head[:3], "big")
        end = position + 9 + length
        if end > len(data):
            return
        stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
        yield head[3], head[4], stream, data[position + 9 : end]
        position = end


def _messages(body: bytearray) -> Iterator[bytes]:
    position = 0
    while position + 5 <= len(body):
        if body[position]:
            raise ValueError("a compressed gRPC message")
        length = int.from_bytes(body[position + 1 : position + 5], "big")
        if position + 5 + length > len(body):
            return
        yield bytes(body[position + 5 : position + 5 + length])
        position += 5 + length
