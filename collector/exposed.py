"""The last reading for Prometheus: an agent that runs here already need no second exporter.

Names are ``foreshock_gpu_`` and the name of the catalogue. What is not measured now has no
series: an old value shown as a new one has misled more people than a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collector.source import Reading
from schemas.metrics import CATALOGUE, Kind
from schemas.sample import GpuInventory

__all__ = ["GpuExposition", "NodeNumbers", "exposed_name"]

_PREFIX = "foreshock_gpu_"
# Prometheus keeps the ending _count for histograms.
_OTHER_NAMES = {"process_count": "processes"}
_LABELS = ("node", "gpu")
_INFO = ("index", "model", "pci", "serial", "vbios", "parent", "mig_profile", "driver")

#: Of the machine: name to (help, {labels: value}) at this moment.
NodeNumbers = Mapping[str, tuple[str, Mapping[tuple[tuple[str, str], ...], float]]]


class GpuExposition(Collector):
    """Shows the values of the last reading of each node while they are true.

    Parameters
    ----------
    alive
        Whether readings still arrive; if not, nothing is shown.
    node_numbers
        What is known of the machine itself, asked at every scrape; None shows nothing of it.
    """

    def __init__(
        self,
        alive: Callable[[], bool],
        node_numbers: Callable[[], NodeNumbers] | None = None,
    ) -> None:
        self._alive = alive
        self._node_numbers = node_numbers
        self._readings: dict[str, Reading] = {}

    def show(self, reading: Reading) -> None:
        """Show this reading instead of the node's last one; one without GPUs shows nothing."""
        self._readings = {**self._readings, reading.node: reading}

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance: names come with what a GPU offers."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment. Called from the thread of the scrape."""
        if self._node_numbers is not None:
            yield from _of_node(self._node_numbers())
        readings = list(self._readings.values()) if self._alive() else []
        for metric in CATALOGUE:
            name, words = exposed_name(metric.name), f"{metric.label_en}: {metric.source}."
            made = CounterMetricFamily if metric.kind == Kind.COUNTER else GaugeMetricFamily
            family = made(name, words, labels=_LABELS)
            for reading in readings:
                for gpu, value in zip(reading.gpus, _column(reading, metric.name), strict=False):
                    if value is not None:
                        family.add_metric((reading.node, gpu), value)
            if family.samples:
                yield family
        yield from _facts(readings)


def exposed_name(metric: str) -> str:
    """Return the name under which Prometheus sees a metric of the catalogue.

    Examples
    --------
    >>> exposed_name("power_watts"), exposed_name("process_count")
    ('foreshock_gpu_power_watts', 'foreshock_gpu_processes')
    """
    return f"{_PREFIX}{_OTHER_NAMES.get(metric, metric)}"


def _column(reading: Reading, name: str) -> list[float | None]:
    return reading.values.get(name, [])


def _facts(readings: list[Reading]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        f"{_PREFIX}info", "1 for each GPU, with what it is.", labels=(*_LABELS, *_INFO)
    )
    job = GaugeMetricFamily(
        f"{_PREFIX}job_info",
        "1 for each job on each GPU.",
        labels=(*_LABELS, "job", "project", "container"),
    )
    for reading in readings:
        known = {facts.gpu: facts for facts in reading.inventory.gpus}
        driver = reading.inventory.driver_version or ""
        for gpu in reading.gpus:
            said = _words(known.get(gpu, GpuInventory(gpu=gpu)))
            info.add_metric((reading.node, gpu, *said, driver), 1.0)
        shown = {
            (reading.node, gpu, ref.job, ref.project or "", ref.container or "")
            for ref in reading.jobs or ()
            for gpu in ref.gpus
        }
        for labels in sorted(shown):
            job.add_metric(labels, 1.0)
    for family in (info, job):
        if family.samples:
            yield family


def _words(facts: GpuInventory) -> list[str]:
    said = (getattr(facts, name) for name in _INFO[:-1])
    return ["" if word is None else str(word) for word in said]


def _of_node(numbers: NodeNumbers) -> Iterator[Metric]:
    for name, (words, values) in numbers.items():
        labels = next(iter(values), ())
        family = GaugeMetricFamily(name, words, labels=[label for label, _ in labels])
        for pairs, value in values.items():
            family.add_metric([text for _, text in pairs], value)
        yield family
