"""What the front door asks of each service, so that one process can run one or all of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry

__all__ = ["Service"]


class Service(Protocol):
    """A service that runs until it is told to stop."""

    #: Short name for logs and health: ``collector``, ``detector``, ``api``.
    name: str
    #: Where its Prometheus metrics are registered.
    registry: CollectorRegistry

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set, then end cleanly within ten seconds.

        Raises
        ------
        ForeshockError
            If it cannot go on; the text is for people.
        """
        ...

    def health(self) -> Mapping[str, object]:
        """Return ``ok`` (bool), ``detail`` (sentence) and numbers. Safe from any thread."""
        ...
