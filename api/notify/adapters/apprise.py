"""Everything else: the services that the optional package apprise knows.

What is kept elsewhere is not kept here, and docs/alerts.md says so: apprise connects by itself, so
addresses are not judged; it says only yes or no, so a refusal cannot be told from a broken line,
and for some services a yes means only that the server answered.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from api.notify.adapters.common import message_of
from api.notify.base import Notice
from api.notify.messages import Style, fitting, plain_text
from api.notify.pacing import Rate
from api.notify.redaction import without_sensitive
from api.notify.retry import Outcome, Verdict
from schemas.errors import ConfigError

__all__ = ["AppriseChannel"]

_TYPES = {"critical": "failure", "warning": "warning", "resolved": "success"}
#: Its log lines name addresses, which are secrets.
_QUIET = logging.CRITICAL + 1


@dataclass(slots=True, kw_only=True)
class AppriseChannel:
    """Sends to one service by apprise.

    Parameters
    ----------
    endpoint
        Its name, for errors.
    url
        The address as apprise writes it; a secret, its host too.
    style
        Language and zone.
    connect_seconds, total_seconds
        Time to connect, and between two bytes of an answer.
    rate
        How much it takes.

    Raises
    ------
    ConfigError
        If the package is not installed, or does not know the address.
    """

    endpoint: str
    url: str
    style: Style
    connect_seconds: float
    total_seconds: float
    rate: Rate | None = Rate.within(20, burst=5)  # noqa: RUF009 - frozen
    digests: bool = True

    def __post_init__(self) -> None:
        self._service()

    def deliver(self, notice: Notice) -> Outcome:
        """Make one attempt."""
        service = self._service()
        message = message_of(without_sensitive(notice), self.style)
        room = max(200, int(service.body_maxlen))
        body = fitting(message, lambda m: plain_text(m, with_title=False), room)
        try:
            done = service.notify(
                title=message.title,
                body=body or message.title,
                notify_type=_TYPES.get(message.severity, "info"),
                body_format="text",
            )
        except Exception as exc:  # noqa: BLE001 - of a package with a hundred services; without its text
            return Outcome(verdict=Verdict.TRANSIENT, error=f"apprise failed: {type(exc).__name__}")
        if done:
            return Outcome(verdict=Verdict.DELIVERED)
        return Outcome(
            verdict=Verdict.TRANSIENT, error="apprise says that it could not be sent", unsure=True
        )

    def _service(self) -> Any:  # a class of the package for each service
        """Return the service; a new one each time, because attempts run side by side."""
        logging.getLogger("apprise").setLevel(_QUIET)  # before it says its first word
        try:
            import apprise  # noqa: PLC0415 - an optional extra
        except ImportError:
            raise ConfigError(
                f"endpoint {self.endpoint!r} is of type apprise, which is not installed: "
                "pip install 'apprise>=2.3,<3'"
            ) from None
        # A redirect could lead anywhere; nothing is kept on disk; no plug-ins of anybody's folder.
        asset = apprise.AppriseAsset(
            plugin_paths=[],
            storage_mode=apprise.PersistentStoreMode.MEMORY,
            secure_logging=True,
            http_redirects=False,
            async_mode=False,
        )
        service = apprise.Apprise.instantiate(self.url, asset=asset, suppress_exceptions=True)
        if service is None:
            raise ConfigError(f"apprise cannot read the address of endpoint {self.endpoint!r}")
        service.redirects = False
        service.socket_connect_timeout = self.connect_seconds
        service.socket_read_timeout = self.total_seconds
        return service
