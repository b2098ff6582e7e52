"""What a machine is for; importable without anything heavy."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Role"]


class Role(StrEnum):
    """The service that runs on a machine."""

    COLLECT = "collect"
    DETECT = "detect"
    SERVE = "serve"
