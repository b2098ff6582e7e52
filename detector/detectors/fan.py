"""Finds fans that stand still, that run at their end for nothing, or that lag behind.

The question is "does the fan do its part?". A fan at zero is no fault on a cool card, many stop
it on purpose; a fan at 100 % is none on a hot day in a loud room with a script that wants it so.
Heat beside the fan tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.ewma import ewma
from detector.stats.peers import block_view, peer_median, to_rows
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Fan"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_STILL = 0.01  # resolution of the reading
_STOPPED, _AT_END, _BEHIND = 0, 1, 2
_FARTHEST = 10.0  # largest score
_MEANS = ("usual_celsius", "usual_watts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """Fan duty beside temperature, load, own past and peers. Only where a fan is reported.

    Parameters
    ----------
    stopped_celsius
        Temperature under load above which a fan at zero has failed, °C: cards that stop it on
        purpose start it again at 50 to 60.
    fanless_celsius
        The same for a card whose fan was never seen turning, °C: it may be water-cooled.
    loaded_ratio
        Share of the power limit from which a card works, 0 to 1.
    busy_ratio
        Utilisation from which it works, where its power limit is not known, 0 to 1.
    end_ratio
        Duty at which the fan gives all it has, 0 to 1.
    residual_celsius
        Temperature above the card's own past at this power that a fan at its end must not leave,
        °C.
    usual_seconds, young_seconds
        Time constant of that past, and how much of it must have been seen, s of load.
    rise_celsius
        Rise of the temperature from no load to the power limit, °C, to compare different
        powers: 31 to 60 on H100, 45 on T4 and RTX 4080.
    behind_ratio
        Duty below the median of the peers' at which a fan lags, 0 to 1.
    behind_celsius
        How much hotter than the peers' median such a card is, °C.
    min_peers
        Cards of the same model on the node, at work themselves, for that comparison.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    Score: the largest of ``1 + (T - stopped) / 10 °C`` for a fan at zero, ``(T - usual) /
    residual`` for a fan at its end, and ``(peers' duty - duty) / behind`` for one that lags; 0
    without load. The past is learned under load while the fan has room left and no alert is
    open. A fan at zero is critical: the card slows down, then shuts down. NVML's figure is the
    *intended* duty, so a fan that is blocked shows as heat at its end, not as zero.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, nvmlDeviceGetFanSpeed: intended speed; N/A on SXM and passive
       boards. Fan 0 % at 46 °C and 84 W is a healthy RTX 4080 SUPER (public capture).

    Examples
    --------
    >>> frame = Frame.of(
    ...     metrics={
    ...         "fan_ratio": [0.0, 0.0, 0.6],
    ...         "temperature_celsius": [46.0, 84.0, 70.0],
    ...         "power_watts": [84.0, 200.0, 300.0],
    ...         "power_limit_watts": [320.0, 320.0, 320.0],
    ...     },
    ...     ts=[0, 0, 0],
    ... )
    >>> watch = Fan()
    >>> fresh = {name: spec.make(3) for name, spec in watch.fields().items()}
    >>> step = watch.step(frame, fresh, {"fan": np.zeros(3, dtype=bool)})
    >>> step.judgements["fan"].score
    array([0. , 1.4, 0. ])
    """

    stopped_celsius: float = 60.0
    fanless_celsius: float = 80.0
    loaded_ratio: float = 0.4
    busy_ratio: float = 0.5
    end_ratio: float = 0.99
    residual_celsius: float = 4.0
    usual_seconds: float = 7200.0
    young_seconds: float = 900.0
    rise_celsius: float = 42.0
    behind_ratio: float = 0.3
    behind_celsius: float = 8.0
    min_peers: int = 2
    enter_seconds: float = 60.0
    exit_seconds: float = 120.0

    name: ClassVar[str] = "fan"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("fan_ratio", "temperature_celsius")
    helps: ClassVar[tuple[str, ...]] = (
        "power_watts",
        "power_limit_watts",
        "gpu_utilization_ratio",
    )

    def __post_init__(self) -> None:
        require_positive(
            residual_celsius=self.residual_celsius,
            usual_seconds=self.usual_seconds,
            behind_ratio=self.behind_ratio,
        )
        if self.min_peers < 1:
            raise ValueError(f"min_peers must be at least 1, got {self.min_peers}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is any of the three at its threshold."""
        return (
            KindSpec(
                kind="fan",
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Usual temperature (°C) and power (W) under load, seconds of it; was the fan turning."""
        return {name: Field("f4") for name in _MEANS} | {
            "seen": Field("f4", 0.0),
            "turned": Field("i1", 0),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU that reports a fan."""
        fan, heat = frame["fan_ratio"], frame["temperature_celsius"]
        usable = np.isfinite(fan) & np.isfinite(heat)
        if not usable.any():
            return _step(np.full(len(frame), np.nan), np.full(len(frame), _BEHIND), dict(state))
        loaded = self._loaded(frame) & usable
        turned = (state["turned"] > 0) | (usable & (fan > _STILL))
        residual, learned = self._past(frame, state, loaded & (fan < self.end_ratio), firing)
        behind, peers = self._behind(frame, loaded)
        from_celsius = np.where(turned, self.stopped_celsius, self.fanless_celsius)
        still = (fan <= _STILL) & (heat > from_celsius)
        stopped = np.where(still, 1.0 + (heat - from_celsius) / 10.0, 0.0)
        at_end = np.where(fan >= self.end_ratio, residual / self.residual_celsius, 0.0)
        each = np.stack([stopped, np.nan_to_num(at_end), behind])
        score = np.where(loaded, np.clip(each.max(axis=0), 0.0, _FARTHEST), 0.0)
        return _step(
            np.where(usable, score, np.nan),
            each.argmax(axis=0),
            learned | {"turned": turned.astype(np.int8)},
            residual_celsius=residual,
            peers_fan=peers,
        )

    def _loaded(self, frame: Frame) -> BoolArray:
        """(n,) at work: by power where its limit is known, else by utilisation."""
        share = frame["power_watts"] / frame["power_limit_watts"]
        busy = frame["gpu_utilization_ratio"] >= self.busy_ratio
        return np.where(np.isfinite(share), share >= self.loaded_ratio, busy)

    def _past(
        self,
        frame: Frame,
        state: Mapping[str, AnyArray],
        learns: BoolArray,
        firing: Mapping[str, BoolArray],
    ) -> tuple[FloatArray, dict[str, AnyArray]]:
        """(n,) excess over the card's own past, NaN while that is young; the past after this."""
        heat, watts = frame["temperature_celsius"], frame["power_watts"]
        usual_heat = state["usual_celsius"].astype(np.float64)
        usual_watts = state["usual_watts"].astype(np.float64)
        per_watt = self.rise_celsius / frame["power_limit_watts"]
        residual = heat - usual_heat - np.nan_to_num((watts - usual_watts) * per_watt)
        residual = np.where(state["seen"] >= self.young_seconds, residual, np.nan)
        learns = learns & ~firing["fan"]
        held = np.where(learns, frame.elapsed, 0.0)
        # A mean from the first minutes would be that of a warm-up: it follows faster at first.
        tau = np.clip(state["seen"] + self.young_seconds / 3.0, 1.0, self.usual_seconds)
        new = {
            "usual_celsius": ewma(usual_heat, np.where(learns, heat, np.nan), held, tau),
            "usual_watts": ewma(usual_watts, np.where(learns, watts, np.nan), held, tau),
            "seen": state["seen"] + held,
        }
        return residual, {name: value.astype(np.float32) for name, value in new.items()}

    def _behind(self, frame: Frame, loaded: BoolArray) -> tuple[FloatArray, FloatArray]:
        """(n,) score of a fan below its peers', and the peers' duty, NaN without enough of them."""
        blocks, size = frame.blocks, len(frame)
        fan = np.where(loaded, frame["fan_ratio"], np.nan)
        known = fan[np.isfinite(fan)]
        if known.size < 2 or known.max() - known.min() < self.behind_ratio:
            return np.zeros(size), np.full(size, np.nan)
        heat = np.where(loaded, frame["temperature_celsius"], np.nan)
        model = block_view(frame.model, blocks, -2)
        same = model[:, :, None] == model[:, None, :]
        duty, count = peer_median(block_view(fan, blocks, np.nan), same)
        warmth, _ = peer_median(block_view(heat, blocks, np.nan), same)
        enough = count >= self.min_peers
        duty = to_rows(np.where(enough, duty, np.nan), blocks, size)
        hotter = heat - to_rows(np.where(enough, warmth, np.nan), blocks, size)
        lags = (hotter >= self.behind_celsius) & (heat > self.stopped_celsius)
        return np.where(lags, np.maximum(duty - fan, 0.0) / self.behind_ratio, 0.0), duty

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the fan beside the heat, by what is wrong with it."""
        del kind
        heat, fan, watts = row["temperature_celsius"], row["fan_ratio"], row.value("power_watts")
        at = "" if watts is None else f" at {watts:.0f} W"
        which = int(row["which"])
        residual, peers = row["residual_celsius"], row["peers_fan"]
        words = f"is at {heat:.0f} °C{at} with its fan at {fan:.0%}"
        if which == _AT_END and np.isfinite(residual):
            words += f", {residual:+.0f} °C against its own past at this power"
        if which == _BEHIND and np.isfinite(peers):
            words += f" where its peers' are at {peers:.0%}"
        return Explanation(
            summary=words,
            evidence=(
                Evidence(metric="fan_ratio", value=fan, unit="", peers=row.value("peers_fan")),
                Evidence(
                    metric="temperature_celsius",
                    value=heat,
                    unit="°C",
                    expected_high=self.stopped_celsius if which == _STOPPED else None,
                ),
                Evidence(
                    metric="temperature_residual_celsius",
                    value=row.value("residual_celsius"),
                    unit="°C",
                    expected_high=self.residual_celsius,
                ),
                Evidence(metric="power_watts", value=watts, unit="W"),
            ),
            likely_cause=_CAUSES[which],
            action=Action.CHECK_COOLING,
            next_steps=(
                "Look at the fan itself: the figure is what the driver asks for, not what turns.",
                "Lower the power limit (nvidia-smi -pl) or move the job until it is repaired.",
                "Clean filter and heat sink; replace the fan if it does not follow.",
            ),
        )


_CAUSES = (
    "The fan does not turn although the card is hot: it has failed, or its control was set to "
    "zero by hand.",
    "The fan gives all it has and the card is hotter than it used to be: dust, a blocked air "
    "path, a fan that does not turn as told, or warmer air.",
    "The fan turns more slowly than those of its peers although the card is hotter: a fixed fan "
    "setting, or a fan control that hangs.",
)


def _step(score: FloatArray, which: AnyArray, state: dict[str, AnyArray], **columns: Any) -> Step:
    ranks = np.where(which == _STOPPED, Severity.CRITICAL.rank, Severity.WARNING.rank)
    judged = Judgement(score=score, severity=ranks.astype(np.int8))
    return Step(judgements={"fan": judged}, state=state, columns=columns | {"which": which})


DETECTOR = Fan
