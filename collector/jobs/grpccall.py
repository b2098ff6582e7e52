"""One gRPC call to a server on a Unix socket: as much of HTTP/2 as that takes, without waiting.

A general gRPC library costs more memory (34 MiB resident once imported) than the rest of the
collector; what is needed is one request without content and one answer. Header blocks of the
answer are skipped unread: a unary call that fails carries no message, so whether a whole message
came tells success from failure. Frames as in RFC 9113, message framing as in gRPC over HTTP/2.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from pathlib import Path

__all__ = ["CallFailedError", "UnaryCall"]

#: Largest answer that is taken; the kubelet allows itself as much.
MAX_BYTES = 16 * 2**20
_PIECE = 1 << 16
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9  # bytes before each frame: length (3), type, flags, stream (4)
_MAX_FRAME = 16_384  # of the protocol, unless more was offered
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED = 0x4, 0x8
_NO_PUSH, _STREAM_WINDOW = 0x2, 0x4  # names of settings
_STREAM = 1


class CallFailedError(Exception):
    """The call cannot come to a good end; the text says why."""


class UnaryCall:
    """One call on a connection of its own. Belongs to one thread.

    Parameters
    ----------
    path
        Of the Unix socket.
    method
        ``/package.Service/Method``, at most 126 characters.
    request
        The encoded message.

    Raises
    ------
    OSError
        If nobody listens, or this user may not connect.
    """

    def __init__(self, path: Path, method: str, request: bytes = b"") -> None:
        self._received = bytearray()
        self._body = bytearray()
        self._done = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(str(path))
            self._socket.sendall(_opening(method, request))
        except OSError:
            self._socket.close()
            raise

    def result(self) -> bytes | None:
        """Return the message of the answer, or None if it is not there yet. Never waits.

        Raises
        ------
        CallFailedError
            If there will be none.
        """
        while not self._done:
            try:
                piece = self._socket.recv(_PIECE)
            except BlockingIOError:
                return None
            except OSError as exc:
                raise CallFailedError(exc.strerror or str(exc)) from exc
            if not piece:
                raise CallFailedError("the connection was closed before the answer was complete")
            self._received += piece
            self._take_frames()
        return self._message()

    def wait(self, seconds: float) -> bytes | None:
        """Return the message of the answer, waiting at most so long for it."""
        until = time.monotonic() + seconds
        while True:
            found = self.result()
            left = until - time.monotonic()
            if found is not None or left <= 0:
                return found
            select.select([self._socket], [], [], left)

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()

    def _take_frames(self) -> None:
        data = self._received
        while len(data) >= _HEAD and not self._done:
            length = int.from_bytes(data[:3], "big")
            if length > _MAX_FRAME:
                raise CallFailedError("the answer is no HTTP/2")
            if len(data) < _HEAD + length:
                return
            kind, flags = data[3], data[4]
            stream = int.from_bytes(data[5:9], "big") & 0x7FFFFFFF
            payload = bytes(data[_HEAD : _HEAD + length])
            del data[: _HEAD + length]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._send(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY and int.from_bytes(payload[:4], "big") < _STREAM:
            raise CallFailedError("the server is going away")
        elif stream == _STREAM and kind == _RESET:
            raise CallFailedError(f"the server broke off, code {int.from_bytes(payload, 'big')}")
        elif stream == _STREAM and kind in {_DATA, _HEADERS}:
            if kind == _DATA:
                self._body += payload[1 : -payload[0] or None] if flags & _PADDED else payload
                if len(self._body) > MAX_BYTES:
                    raise CallFailedError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
            self._done = bool(flags & _END_STREAM)

    def _send(self, frame: bytes) -> None:
        # A server that has said all may have gone: what it said still counts.
        with contextlib.suppress(OSError):
            self._socket.sendall(frame)

    def _message(self) -> bytes:
        """Take the message out of its frame: a byte for compression, four for the length."""
        if not self._body:
            raise CallFailedError("the server refused the call")
        if len(self._body) < 5 or self._body[0] != 0:
            raise CallFailedError("the answer is no gRPC message that can be read")
        if int.from_bytes(self._body[1:5], "big") != len(self._body) - 5:
            raise CallFailedError("the answer is cut")
        return bytes(self._body[5:])


def _opening(method: str, request: bytes) -> bytes:
    """Everything that has to be said for the whole call."""
    settings = struct.pack(">HIHI", _NO_PUSH, 0, _STREAM_WINDOW, MAX_BYTES)
    headers = b"".join(
        _literal(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "foreshock"),
        )
    )
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, settings),
            _frame(_WINDOW, 0, 0, struct.pack(">I", MAX_BYTES - 65_535)),
            _frame(_HEADERS, _END_HEADERS, _STREAM, headers),
            _frame(_DATA, _END_STREAM, _STREAM, struct.pack(">BI", 0, len(request)) + request),
        )
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Write a header field that no table keeps; lengths below 127 need no second byte."""
    return bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
