"""Signs that a GPU was reset or its driver reloaded: the end of what stands until then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field
from detector.frame import Frame
from schemas.sample import EventKind

__all__ = ["END_WORDS", "RESET_FIELDS", "reset_signs", "taken_out"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes

#: To be declared by a detector that uses :func:`reset_signs`: last energy reading (J).
RESET_FIELDS: dict[str, Field] = {"reset_energy": Field("f4")}

#: End reason to the words after "has ended after 10 min: ".
END_WORDS = {
    "gpu_reset": "the GPU was reset or its driver reloaded",
    "gpu_removed": "the GPU was taken out",
    "quiet": "nothing new was reported",
}

_EVENTS = {EventKind.GPU_RETURNED, EventKind.COUNTER_RESET, EventKind.DRIVER_CHANGED}
#: The energy counter is kept in single precision; a fall by less may be rounding.
_FALL = 0.9


def reset_signs(
    frame: Frame, state: Mapping[str, AnyArray]
) -> tuple[BoolArray, dict[str, AnyArray]]:
    """Tell which GPUs were reset since the previous frame, and the new state.

    The energy counter begins anew with the driver and with a reset (nvml.h); the collector's
    events say the same where it saw the GPU return or the driver change.

    Examples
    --------
    >>> state = {"reset_energy": np.array([5e6], dtype=np.float32)}
    >>> frame = Frame.of(metrics={"energy_joules_total": [900.0]}, ts=[0])
    >>> reset_signs(frame, state)[0]
    array([ True])
    """
    energy, last = frame["energy_joules_total"], state["reset_energy"]
    reset: BoolArray = energy < _FALL * last
    for position, event in frame.events:
        if event.kind in _EVENTS:
            reset[position] = True
    kept = np.where(np.isfinite(energy), energy, last).astype(np.float32)
    return reset, {"reset_energy": kept}


def taken_out(frame: Frame) -> BoolArray:
    """Tell which GPUs the node rightly no longer lists, (n,): nothing holds for them."""
    out: BoolArray = frame.gone & ~frame.absent
    return out
