"""Connections to receivers that end at a deadline, whatever the receiver does.

The time-outs of an HTTP client count from one byte to the next: a receiver that sends a header
line each second is never silent and never done. Here each operation gets what is left of the
whole attempt. A TLS handshake, and each read of TLS, is bounded as a whole by Python itself.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
from httpcore2 import NetworkBackend, NetworkStream

__all__ = ["Clock", "Deadline", "PinnedBackend"]

Clock = Callable[[], float]


class Deadline:
    """The end of an attempt.

    Parameters
    ----------
    seconds
        From now.
    clock
        Monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self, at_most: float | None = None) -> float:
        """Return the seconds left, at most ``at_most``. Raises TimeoutError if there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError("the whole attempt took too long")
        return left if at_most is None else min(left, at_most)


class PinnedBackend(NetworkBackend):
    """Connects to one address that was judged before, within a deadline.

    Parameters
    ----------
    address
        Where to connect, whatever name the request carries.
    connect_seconds
        Time to connect.
    deadline
        End of the attempt.
    """

    def __init__(self, address: str, *, connect_seconds: float, deadline: Deadline) -> None:
        self._address = address
        self._connect_seconds = connect_seconds
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> NetworkStream:
        """Connect to the judged address; ``host`` is only a name by now."""
        _ = (host, timeout, local_address, socket_options)
        try:
            sock = socket.create_connection(
                (self._address, port), self._deadline.left(self._connect_seconds)
            )
        except TimeoutError as exc:
            raise httpcore2.ConnectTimeout from exc
        except OSError as exc:
            raise httpcore2.ConnectError from exc
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Stream(sock, self._connect_seconds, self._deadline)


class _Stream(NetworkStream):
    def __init__(self, sock: socket.socket, connect_seconds: float, deadline: Deadline) -> None:
        self._sock = sock
        self._connect_seconds = connect_seconds
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        _ = timeout
        try:
            self._sock.settimeout(self._deadline.left())
            return self._sock.recv(max_bytes)
        except TimeoutError as exc:
            raise httpcore2.ReadTimeout from exc
        except OSError as exc:
            raise httpcore2.ReadError from exc

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        _ = timeout
        try:
            self._sock.settimeout(self._deadline.left())
            self._sock.sendall(buffer)
        except TimeoutError as exc:
            raise httpcore2.WriteTimeout from exc
        except OSError as exc:
            raise httpcore2.WriteError from exc

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> NetworkStream:
        _ = timeout
        try:
            self._sock.settimeout(self._deadline.left(self._connect_seconds))
            sock = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname)
        except TimeoutError as exc:
            self.close()
            raise httpcore2.ConnectTimeout from exc
        except OSError as exc:
            self.close()
            raise httpcore2.ConnectError from exc
        return _Stream(sock, self._connect_seconds, self._deadline)

    # Any: as the base class has it.
    def get_extra_info(self, info: str) -> Any:
        """Return the TLS object, for the choice of HTTP version."""
        if info == "ssl_object" and isinstance(self._sock, ssl.SSLSocket):
            return self._sock
        return None
