"""Sends one request and reports what came back. The only file that speaks HTTP to receivers.

Nothing of a URL but its host appears in any message: in chat tools the path is the secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpcore2

from api.notify.base import Answer, OutboundRequest
from api.notify.egress import Allowed, RefusedAddressError, check_addresses, check_port, resolve
from api.notify.wire import Deadline, PinnedBackend

__all__ = ["HttpSender", "SendError", "Sender", "tls_context"]

_READ_CAP_BYTES = 65_536
#: Failures before these, the receiver has seen nothing.
_AFTER_CONNECT = (
    httpcore2.ReadError,
    httpcore2.ReadTimeout,
    httpcore2.WriteError,
    httpcore2.WriteTimeout,
)


class SendError(Exception):
    """No answer came.

    Parameters
    ----------
    message
        What failed: never a URL, which may be a secret.
    permanent
        Whether trying again is pointless until somebody changes something.
    unsure
        Whether the request may have arrived: it was sent, at least in part.
    """

    def __init__(self, message: str, *, permanent: bool = False, unsure: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.unsure = unsure


class Sender(Protocol):
    """Sends a request."""

    def send(self, request: OutboundRequest, *, allow_private: bool) -> Answer:
        """Return the answer. Raises SendError if none came."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def tls_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Return a TLS context that checks certificates and names, TLS 1.2 or newer.

    Parameters
    ----------
    ca_file
        Authorities to trust instead of the system's, PEM.
    """
    context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class HttpSender:
    """The real thing: no redirects, no proxies or certificates from the environment, no cookies.

    A connection serves one request: a kept one would belong to an address judged earlier. Safe to
    share between threads.

    Parameters
    ----------
    connect_seconds, total_seconds
        Time to connect, and for the whole attempt however slowly the receiver talks.
    allowed
        Private addresses that every endpoint may have.
    resolver
        Host and port to addresses.
    """

    def __init__(
        self,
        *,
        connect_seconds: float,
        total_seconds: float,
        allowed: Allowed | None = None,
        resolver: Callable[[str, int], list[str]] = resolve,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._total_seconds = total_seconds
        self._allowed = allowed or Allowed()
        self._resolve = resolver
        self._contexts: dict[Path | None, ssl.SSLContext] = {}

    def send(self, request: OutboundRequest, *, allow_private: bool) -> Answer:
        """Send, read at most 64 KB, give up at the deadline."""
        deadline = Deadline(self._total_seconds)
        parts = urlsplit(request.url)
        host = parts.hostname or ""
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            check_port(host, port)
            addresses = self._resolve(host, port)
            address = check_addresses(
                host, addresses, allow_private=allow_private, allowed=self._allowed
            )
            return self._exchange(request, address, deadline)
        except RefusedAddressError as exc:
            raise SendError(str(exc), permanent=True) from None
        # ValueError: a URL or header that no request can carry.
        except (httpcore2.NetworkError, httpcore2.TimeoutException, OSError) as exc:
            raise _failure(exc, host) from None
        except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol, ValueError) as exc:
            message = f"no valid answer from {host}: {type(exc).__name__}"
            raise SendError(message, unsure=isinstance(exc, httpcore2.ProtocolError)) from None

    def _exchange(self, request: OutboundRequest, address: str, deadline: Deadline) -> Answer:
        backend = PinnedBackend(address, connect_seconds=self._connect_seconds, deadline=deadline)
        headers: list[tuple[str | bytes, str | bytes]] = [*request.headers.items()]
        headers.append(("connection", "close"))
        with (
            httpcore2.ConnectionPool(
                ssl_context=self._context(request.ca_file), network_backend=backend
            ) as pool,
            pool.stream(
                request.method, request.url, headers=headers, content=request.body
            ) as response,
        ):
            body = b""
            for chunk in response.iter_stream():
                body += chunk
                if len(body) >= _READ_CAP_BYTES:
                    break
            found = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers}
            return Answer(status=response.status, headers=found, body=body[:_READ_CAP_BYTES])

    def _context(self, ca_file: Path | None) -> ssl.SSLContext:
        if ca_file not in self._contexts:
            self._contexts[ca_file] = tls_context(ca_file)
        return self._contexts[ca_file]

    def close(self) -> None:
        """Nothing: no connection outlives its request."""


def _failure(exc: Exception, host: str) -> SendError:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return SendError(
                f"the TLS certificate of {host} is not trusted: {cause.verify_message}",
                permanent=True,
            )
        cause = cause.__cause__ or cause.__context__
    return SendError(
        f"no answer from {host}: {type(exc).__name__}", unsure=isinstance(exc, _AFTER_CONNECT)
    )
