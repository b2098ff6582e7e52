"""How much a receiver takes, and whether it is worth asking at all. Pure: time is passed in."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Breaker", "Pace", "Rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket.

    Parameters
    ----------
    per_minute
        Tokens that come back in a minute.
    burst
        Tokens that it holds. In any minute at most ``burst + per_minute`` messages pass, so the
        two together stay within a provider's limit.
    """

    per_minute: float
    burst: float = 1.0

    @classmethod
    def within(cls, limit_per_minute: float, burst: float) -> Rate:
        """Return the rate that never exceeds a limit, counted over any minute.

        Examples
        --------
        >>> Rate.within(20, burst=5)
        Rate(per_minute=15, burst=5)
        """
        burst = min(burst, limit_per_minute / 2)
        return cls(per_minute=limit_per_minute - burst, burst=burst)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When an endpoint is left alone.

    Parameters
    ----------
    failures
        Failures of line or server in a row that open it.
    first_ms, longest_ms
        Wait before the first probe, doubling up to the longest.
    """

    failures: int = 5
    first_ms: int = 30_000
    longest_ms: int = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """State of one endpoint, kept in the store over restarts and shared by processes.

    Parameters
    ----------
    tokens
        In the bucket at ``tokens_ms``; negative values never occur.
    tokens_ms
        When they were counted, unix milliseconds.
    failures
        Failures of line or server in a row.
    probe_ms
        While open: when the next probe may go; None while closed.
    probes
        Probes that failed since it opened.
    failing_since_ms
        First failure since the last success, or None.
    digest_ms
        When the last digest went, or None.
    told_ms
        Start of the open alert that says that it fails, or None.
    """

    tokens: float | None = None
    tokens_ms: int = 0
    failures: int = 0
    probe_ms: int | None = None
    probes: int = 0
    failing_since_ms: int | None = None
    digest_ms: int | None = None
    told_ms: int | None = None

    def available(self, rate: Rate | None, now_ms: int) -> float:
        """Return the tokens that are there now; infinite without a rate.

        Examples
        --------
        >>> Pace(tokens=0.0, tokens_ms=0).available(Rate(per_minute=60, burst=5), 2000)
        2.0
        """
        if rate is None:
            return float("inf")
        if self.tokens is None:
            return rate.burst
        passed = max(0, now_ms - self.tokens_ms) / 60_000
        return min(rate.burst, self.tokens + passed * rate.per_minute)

    def taking(self, number: int, rate: Rate | None, now_ms: int) -> Pace:
        """Return the state after ``number`` tokens were taken."""
        if rate is None or number == 0:
            return self
        left = max(0.0, self.available(rate, now_ms) - number)
        return replace(self, tokens=left, tokens_ms=now_ms)

    def next_token_ms(self, rate: Rate | None, now_ms: int) -> int:
        """Return when a whole token is there."""
        lack = 1.0 - self.available(rate, now_ms)
        if rate is None or lack <= 0:
            return now_ms
        return now_ms + int(lack / rate.per_minute * 60_000) + 1

    def probing_until(self, until_ms: int) -> Pace:
        """Return the state while a probe is under way: no second one beside it."""
        return replace(self, probe_ms=until_ms)

    def after_digest(self, now_ms: int) -> Pace:
        """Return the state after a digest was made."""
        return replace(self, digest_ms=now_ms)

    @property
    def is_open(self) -> bool:
        """Whether the endpoint is only probed."""
        return self.probe_ms is not None

    def after_success(self) -> Pace:
        """Return the state after the receiver has taken something."""
        return replace(self, failures=0, probe_ms=None, probes=0, failing_since_ms=None)

    def after_answer(self, now_ms: int) -> Pace:
        """Return the state after a refusal: the line works, the endpoint still takes nothing."""
        since = self.failing_since_ms or now_ms
        return replace(self, failures=0, probe_ms=None, probes=0, failing_since_ms=since)

    def after_failure(self, breaker: Breaker, now_ms: int, *, probe: bool) -> Pace:
        """Return the state after a failure of line or server.

        Examples
        --------
        >>> pace = Pace(failures=4).after_failure(Breaker(), 1000, probe=False)
        >>> pace.probe_ms, pace.after_failure(Breaker(), 31_000, probe=True).probe_ms
        (31000, 91000)
        """
        failures = self.failures + 1
        since = self.failing_since_ms or now_ms
        probes = self.probes + 1 if probe else self.probes
        probe_ms = self.probe_ms
        if failures >= breaker.failures and (probe or probe_ms is None):
            wait = min(breaker.first_ms * 2 ** min(probes, 20), breaker.longest_ms)
            probe_ms = now_ms + wait
        return replace(
            self, failures=failures, failing_since_ms=since, probes=probes, probe_ms=probe_ms
        )
