"""A test message, by the same way as a real one."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from api.notify.base import Channel, Notice
from api.notify.retry import Verdict
from schemas.alert import rfc3339

__all__ = ["TrialResult", "send_trial", "trial_event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a test came to. Says no more of an unknown address than whether it answered.

    Parameters
    ----------
    delivered
        Whether the receiver has confirmed it.
    verdict
        Class of the answer.
    latency_ms
        How long it took.
    status
        HTTP status of the answer, 250 for mail that was taken; None without one.
    error
        Why not, without address and secret; None if delivered.
    """

    delivered: bool
    verdict: str
    latency_ms: int
    status: int | None
    error: str | None


def trial_event(now_ms: int) -> dict[str, Any]:  # decoded JSON of an AlertEvent
    """Return an alert that says of itself that it is a test."""
    return {
        "schema": "gpu.alert/1",
        "alert_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.test")),
        "fingerprint": str(uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.test.fingerprint")),
        "seq": 1,
        "state": "firing",
        "family": "thermal_fault",
        "kind": "peer_outlier",
        "severity": "info",
        "subject": {"scope": "gpu", "node": "test-node", "gpu_index": 0, "gpu_uuid": "GPU-test"},
        "started_at": rfc3339(now_ms - 120_000),
        "observed_at": rfc3339(now_ms),
        "ended_at": None,
        "end_reason": None,
        "score": 0.5,
        "summary": "This is a test message of foreshock: nothing is wrong with any GPU.",
        "evidence": [
            {
                "metric": "gpu_temperature_celsius",
                "value": 87.0,
                "unit": "°C",
                "expected_low": None,
                "expected_high": 78.0,
                "baseline": 72.0,
                "peers": 74.0,
                "window_seconds": 120.0,
            }
        ],
        "series": [],
        "likely_cause": "Somebody tries out this endpoint.",
        "action": "none",
        "next_steps": ["Nothing to do."],
        "unmeasured": [],
        "caused_by": None,
        "labels": None,
        "detector": {"name": "test", "version": "1"},
        "flapping": False,
        "shadow": False,
    }


def send_trial(channel: Channel, now_ms: int | None = None) -> TrialResult:
    """Send a test message now, beside the queue and its order."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    notice = Notice(webhook_id=str(uuid.uuid4()), attempt=1, event=trial_event(now), kind="test")
    begun = time.monotonic()
    outcome = channel.deliver(notice)
    return TrialResult(
        delivered=outcome.verdict is Verdict.DELIVERED,
        verdict=outcome.verdict.value,
        latency_ms=round((time.monotonic() - begun) * 1000),
        status=outcome.status,
        error=outcome.error,
    )
