"""The kubelet of this node, asked now and then which pod was given which GPU.

It is asked without waiting: the answer is taken at a later reading. A node without a kubelet is a
fact, not a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import structlog

from collector.jobs.grpccall import CallFailedError, UnaryCall
from collector.jobs.podresources import (
    LIST_METHOD,
    Holding,
    MalformedAnswerError,
    holdings_of,
)

__all__ = ["Kubelet", "KubeletState"]

log = structlog.get_logger()

#: An answer that takes longer is not waited for; the kubelet answers from memory, in milliseconds.
DEADLINE_MS = 10_000
#: What was said is believed for so many refreshes without a newer answer: pods outlive a restart
#: of the kubelet, which takes seconds.
BELIEVED_REFRESHES = 4


class KubeletState(StrEnum):
    """What came of the last question."""

    ASKED = "asked"
    OK = "ok"
    ABSENT = "absent"
    REFUSED = "refused"
    FAILING = "failing"


_SENTENCES = {
    KubeletState.ASKED: "The kubelet at {path} has not answered yet.",
    KubeletState.OK: "The kubelet says which pod was given which GPU.",
    KubeletState.ABSENT: "No kubelet runs here, or its socket is not mounted: {path} is not there.",
    KubeletState.REFUSED: "{path} may not be used by this user: run the collector as root there, "
    "or set collector.jobs.pod_resources = false.",
    KubeletState.FAILING: "The kubelet does not answer at {path}: {reason}. It is asked again.",
}


class Kubelet:
    """Knows who was given what. Belongs to one thread, ``health`` to any.

    Parameters
    ----------
    path
        Socket of the pod-resources API.
    refresh_seconds
        How often it is asked.
    """

    def __init__(self, path: Path, refresh_seconds: float) -> None:
        self._path = path
        self._refresh_ms = round(refresh_seconds * 1000)
        self._call: UnaryCall | None = None
        self._asked_at = -self._refresh_ms
        self._told_at: int | None = None
        self._holdings: tuple[Holding, ...] = ()
        self._state = KubeletState.ASKED
        self._reason = ""

    def begin(self, ts_ms: int, seconds: float) -> None:
        """Ask, and wait at most so long for the answer: before the first reading."""
        self._call = self._call or self._asked(ts_ms)
        self._take(ts_ms, seconds)

    def holdings(self, ts_ms: int) -> tuple[Holding, ...] | None:
        """Return who holds what, as last told; None where nothing can be known. Never waits.

        Parameters
        ----------
        ts_ms
            Now, unix milliseconds.
        """
        if self._call is None and not 0 <= ts_ms - self._asked_at < self._refresh_ms:
            self._call = self._asked(ts_ms)
        self._take(ts_ms, 0.0)
        believed = BELIEVED_REFRESHES * self._refresh_ms
        if self._told_at is None or not 0 <= ts_ms - self._told_at <= believed:
            return None
        return self._holdings

    def health(self) -> Mapping[str, object]:
        """Return ``state`` (a word) and ``detail`` (a sentence)."""
        words = _SENTENCES[self._state]
        return {
            "state": str(self._state),
            "detail": words.format(path=self._path, reason=self._reason),
        }

    def close(self) -> None:
        """Let go of the connection, if there is one."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def _asked(self, ts_ms: int) -> UnaryCall | None:
        """Ask; None where that is not possible."""
        self._asked_at = ts_ms
        try:
            self._path.stat()  # what is absent is absent, also where no socket could be
            return UnaryCall(self._path, LIST_METHOD)
        except FileNotFoundError:
            self._note(KubeletState.ABSENT)
        except PermissionError:
            self._note(KubeletState.REFUSED)
        except OSError as exc:
            self._note(KubeletState.FAILING, exc.strerror or str(exc))
        return None

    def _take(self, ts_ms: int, seconds: float) -> None:
        """Take the answer if it is there, and part with a call that has none."""
        call = self._call
        if call is None:
            return
        try:
            answer = call.wait(seconds)
            if answer is not None:
                self._holdings, self._told_at = holdings_of(answer), ts_ms
                self._note(KubeletState.OK)
            elif 0 <= ts_ms - self._asked_at < DEADLINE_MS:
                return
            else:
                self._note(KubeletState.FAILING, "no answer within ten seconds")
        except (CallFailedError, MalformedAnswerError) as exc:
            self._note(KubeletState.FAILING, str(exc))
        self.close()

    def _note(self, state: KubeletState, reason: str = "") -> None:
        changed, self._state, self._reason = state != self._state, state, reason
        if changed:
            say = log.info if state in {KubeletState.OK, KubeletState.ABSENT} else log.warning
            say("kubelet_state_changed", **self.health())
