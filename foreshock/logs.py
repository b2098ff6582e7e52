"""Logging: one structured line per event on stderr, with secrets hidden.

Standard-library loggers (uvicorn, SQLAlchemy, alembic) pass through the same chain, so a log
collector sees one format.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import IO, Any

import structlog
from structlog.typing import Processor

from foreshock.secrets import MASK, is_secret_name, mask_text

__all__ = ["hide_secrets", "set_up_logging"]

#: HTTP clients log whole addresses at info and headers at debug; in chat tools the address is the
#: secret. Their warnings are enough.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3", "requests", "apprise", "hpack")


def _hide(name: str, value: object) -> object:
    if is_secret_name(name):
        return MASK
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, dict):
        return {key: _hide(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide("", item) for item in value]
    return value


def hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Structlog processor: hide what is a secret by its name or by its form."""
    for name, value in event.items():
        event[name] = _hide(name, value)
    return event


def set_up_logging(level: str, style: str, stream: IO[str] | None = None) -> None:
    """Configure structlog and the standard library for this process.

    Parameters
    ----------
    level
        ``debug``, ``info``, ``warning`` or ``error``.
    style
        ``console`` for people, ``json`` for collectors, ``auto``: console on a terminal.
    stream
        Where to write; stderr by default, so that stdout stays for results.
    """
    target = stream if stream is not None else sys.stderr
    console = style == "console" or (style == "auto" and target.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if console:
        render += [hide_secrets, structlog.dev.ConsoleRenderer(colors=target.isatty())]
    else:
        # The traceback becomes text before the secrets in it are hidden.
        render += [
            structlog.processors.format_exc_info,
            hide_secrets,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
