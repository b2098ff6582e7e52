"""Sends one request and reports what came back. The only file that connects to receivers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Protocol

import httpx2

from api.notify.base import Answer, OutboundRequest
from api.notify.egress import RefusedAddressError, check_addresses, resolve

__all__ = ["HttpSender", "SendError", "Sender"]

_READ_CAP_BYTES = 65_536


class SendError(Exception):
    """No answer came.

    Parameters
    ----------
    message
        What failed: never a URL, which may be a secret.
    permanent
        Whether trying again is pointless until somebody changes something.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class Sender(Protocol):
    """Sends a request."""

    def send(self, request: OutboundRequest, *, allow_private: bool) -> Answer:
        """Return the answer. Raises SendError if none came."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class HttpSender:
    """The real thing: no redirects, no proxies or certificates from the environment.

    Safe to share between threads.

    Parameters
    ----------
    connect_seconds, total_seconds
        Time to connect, and for the whole attempt.
    resolver
        Host and port to addresses.
    """

    def __init__(
        self,
        *,
        connect_seconds: float,
        total_seconds: float,
        resolver: Callable[[str, int], list[str]] = resolve,
    ) -> None:
        self._total_seconds = total_seconds
        self._resolve = resolver
        self._client = httpx2.Client(
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(total_seconds, connect=min(connect_seconds, total_seconds)),
            # A kept connection belongs to an address judged earlier, and may be half dead.
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=0),
        )

    def send(self, request: OutboundRequest, *, allow_private: bool) -> Answer:
        """Send, read at most 64 KB, give up at the deadline."""
        deadline = time.monotonic() + self._total_seconds
        url = httpx2.URL(request.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = self._resolve(url.host, port)
            address = check_addresses(url.host, addresses, allow_private=allow_private)
            with self._client.stream(
                "POST",
                url.copy_with(host=address),
                headers={**request.headers, "host": url.netloc.decode("ascii")},
                content=request.body,
                extensions={"sni_hostname": url.host},
            ) as response:
                body = _read(response, deadline)
                headers = {name.lower(): text for name, text in response.headers.items()}
                return Answer(status=response.status_code, headers=headers, body=body)
        except RefusedAddressError as exc:
            raise SendError(str(exc), permanent=True) from exc
        except (httpx2.HTTPError, OSError) as exc:
            raise _failure(exc, url.host) from exc

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _read(response: httpx2.Response, deadline: float) -> bytes:
    body = b""
    for chunk in response.iter_raw():
        body += chunk
        if len(body) >= _READ_CAP_BYTES:
            break
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the answer took too long")
    return body[:_READ_CAP_BYTES]


def _failure(exc: Exception, host: str) -> SendError:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return SendError(
                f"the TLS certificate of {host} is not trusted: {cause.verify_message}",
                permanent=True,
            )
        cause = cause.__cause__ or cause.__context__
    return SendError(f"no answer from {host}: {type(exc).__name__}")
