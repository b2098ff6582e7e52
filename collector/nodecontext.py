"""The machine around the GPUs: processors, memory, swap, load. By psutil, asked when shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NodeContext"]

_PREFIX = "foreshock_node_"
_NONE: tuple[tuple[str, str], ...] = ()


class NodeContext:
    """Numbers of this machine at the moment of asking."""

    def __init__(self) -> None:
        self._psutil: Any = None  # has no stubs

    def values(self) -> dict[str, float]:
        """Return name to number; a load average as ``load1``, ``load5``, ``load15``.

        The share of processor time needs two looks: it is not in the first answer.
        """
        first = self._psutil is None
        if first:
            # Here rather than above: where nobody scrapes, 3 MiB of memory are not spent.
            import psutil as loaded  # type: ignore[import-untyped]  # noqa: PLC0415 - see above

            self._psutil = loaded
        psutil = self._psutil
        cpu = psutil.cpu_percent(interval=None) / 100.0
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        loads = psutil.getloadavg()
        return {
            **({} if first else {"cpu_utilization_ratio": cpu}),
            "cpu_count": float(psutil.cpu_count() or 0),
            "memory_total_bytes": float(memory.total),
            "memory_available_bytes": float(memory.available),
            "swap_total_bytes": float(swap.total),
            "swap_used_bytes": float(swap.used),
            **{f"load{minutes}": load for minutes, load in zip((1, 5, 15), loads, strict=True)},
        }

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
            (("minutes", str(minutes)),): found[f"load{minutes}"] for minutes in (1, 5, 15)
        }
        return {**shown, f"{_PREFIX}load_average": ("Processes that run or want to.", loads)}
