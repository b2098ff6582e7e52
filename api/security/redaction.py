"""What only some may see: user names, command lines, environments of containers.

The detector does not put them into alerts; labels of an operator's settings, and alerts from
elsewhere, may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HIDDEN", "is_sensitive", "redacted"]

HIDDEN = "[hidden]"
_SENSITIVE = re.compile(
    r"(^|_)(user|username|user_name|user_hash|uid|email|cmdline|command|command_line|argv|args|"
    r"env|environment|container_env|password|secret|token|api_key)($|_)",
    re.ASCII | re.IGNORECASE,
)


def is_sensitive(name: str) -> bool:
    """Tell whether a label of this name is hidden without ``sensitive:read``.

    Examples
    --------
    >>> [is_sensitive(name) for name in ("user", "job_user", "cmdline", "rack", "cluster_users")]
    [True, True, True, False, False]
    """
    return _SENSITIVE.search(name) is not None


def redacted(alert: Mapping[str, Any]) -> dict[str, Any]:  # decoded JSON
    """Return an alert with sensitive labels hidden."""
    shown = dict(alert)
    labels = shown.get("labels")
    if labels:
        shown["labels"] = {k: HIDDEN if is_sensitive(k) else v for k, v in labels.items()}
    return shown
