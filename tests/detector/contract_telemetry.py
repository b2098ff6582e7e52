"""The telemetry of the contract, under the name by which tests know it.

It is part of the product, so that a detector from elsewhere can be checked as well: edit
``detector/contract/telemetry.py`` and ``detector/contract/troubles.py``.
"""

from __future__ import annotations

from detector.contract.telemetry import (
    frames_for,
    frames_of,
    healthy,
    rough,
    samples_of,
    take,
    without,
)

__all__ = ["frames_for", "frames_of", "healthy", "rough", "samples_of", "take", "without"]
