"""One GET of plain text, whole or not at all, within a time that nothing can stretch."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from schemas.errors import SourceError

__all__ = ["fetch"]

_PIECE = 65_536


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An exporter does not send its readers elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """Refuse."""


def fetch(
    url: str,
    *,
    timeout_seconds: float,
    max_bytes: int,
    token: str | None = None,
    now: Callable[[], float] = time.monotonic,
) -> str:
    """Return the text behind a URL.

    Parameters
    ----------
    url
        http or https.
    timeout_seconds
        For connecting and for the whole answer, however slowly it drips.
    max_bytes
        Longest answer.
    token
        Sent as bearer token.
    now
        Clock, seconds.

    Raises
    ------
    SourceError
        If there is no whole answer with status 200 in time; the text says why.
    """
    deadline = now() + timeout_seconds
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})  # noqa: S310 - HttpUrl
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    # No proxy: the exporter is on this node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=timeout_seconds) as answer:
            data = _read(answer, deadline, max_bytes, now)
    except urllib.error.HTTPError as exc:
        exc.close()
        raise SourceError(f"{url} answers {exc.code} {exc.reason}") from exc
    except (OSError, http.client.HTTPException, ValueError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise SourceError(f"{url} cannot be read: {reason or type(exc).__name__}") from exc
    return data.decode("utf-8", errors="replace")


def _read(
    answer: http.client.HTTPResponse, deadline: float, max_bytes: int, now: Callable[[], float]
) -> bytes:
    found = bytearray()
    while piece := answer.read1(_PIECE):
        found += piece
        if len(found) > max_bytes:
            raise ValueError(f"the answer is longer than {max_bytes} bytes")
        if now() > deadline:
            raise TimeoutError("the answer did not end in time")
    if answer.length:  # read1 does not complain about what is missing
        raise ValueError(f"the answer ends {answer.length} bytes early")
    if found and not found.endswith(b"\n"):
        raise ValueError("the answer ends in the middle of a line")
    return bytes(found)
