"""The machine around the GPUs: processors, memory, swap, load. By psutil, asked when shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NodeContext"]

_PREFIX = "foreshock_node_"
_NONE: tuple[tuple[str, str], ...] = ()


class NodeContext:
    """Numbers of this machine at the moment of asking.

    Each instance remembers its own last look: who scrapes does not shorten the time over which
    somebody else's share of processor time is taken. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._psutil: Any = None  # has no stubs
        self._seen: tuple[float, float] | None = None
        self._share: float | None = None

    def values(self) -> dict[str, float]:
        """Return name to number, named as :data:`~schemas.sample.HOST_NUMBERS` names them.

        The share of processor time needs two looks: it is not in the first answer. Empty where
        the machine hides its numbers.
        """
        if self._psutil is None:
            # Here rather than above: where nobody asks, 3 MiB of memory are not spent.
            import psutil as loaded  # type: ignore[import-untyped]  # noqa: PLC0415 - see above

            self._psutil = loaded
        psutil = self._psutil
        try:
            cpu = self._cpu(psutil.cpu_times())
            memory, swap = psutil.virtual_memory(), psutil.swap_memory()
            loads = psutil.getloadavg()
        except (OSError, RuntimeError, ValueError):
            return {}  # a container that hides /proc: the GPUs matter more
        return {
            **({} if cpu is None else {"cpu_utilization_ratio": cpu}),
            "cpu_count": float(psutil.cpu_count() or 0),
            "memory_total_bytes": float(memory.total),
            "memory_available_bytes": float(memory.available),
            "swap_total_bytes": float(swap.total),
            "swap_used_bytes": float(swap.used),
            **{f"load{minutes}": load for minutes, load in zip((1, 5, 15), loads, strict=True)},
        }

    # Any: a tuple with names that differ between kernels.
    def _cpu(self, times: Any) -> float | None:
        """Return the share of processor time used since the last look; None at the first."""
        idle = times.idle + getattr(times, "iowait", 0.0)
        # The kernel counts the time of guests in user and nice as well.
        whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        if self._seen is None:
            self._seen = (whole, idle)
        elif whole > self._seen[0]:
            busy = 1.0 - float((idle - self._seen[1]) / (whole - self._seen[0]))
            self._share, self._seen = min(1.0, max(0.0, busy)), (whole, idle)
        return self._share

    def __call__(
        self,
    ) -> Mapping[str, tuple[str, Mapping[tuple[tuple[str, str], ...], float]]]:
        """Return the numbers as the exposition takes them."""
        found = self.values()
        shown = {
            f"{_PREFIX}{name}": (words, {_NONE: found[key]})
            for name, key, words in (
                (
                    "cpu_utilization_ratio",
                    "cpu_utilization_ratio",
                    "Share of processor time used since the last scrape.",
                ),
                ("logical_processors", "cpu_count", "Logical processors of the machine."),
                ("memory_total_bytes", "memory_total_bytes", "Main memory."),
                (
                    "memory_available_bytes",
                    "memory_available_bytes",
                    "Main memory that programs could still get.",
                ),
                ("swap_total_bytes", "swap_total_bytes", "Swap."),
                ("swap_used_bytes", "swap_used_bytes", "Swap in use."),
            )
            if key in found
        }
        loads: dict[tuple[tuple[str, str], ...], float] = {
            (("minutes", str(minutes)),): found[f"load{minutes}"]
            for minutes in (1, 5, 15)
            if f"load{minutes}" in found
        }
        if not loads:
            return shown
        return {**shown, f"{_PREFIX}load_average": ("Processes that run or want to.", loads)}
