"""What every detector promises, as checks that anybody can run.

A detector from elsewhere is checked like those that come with foreshock: healthy and rough
telemetry is made here, every rule is one small function over a detector, and the first rule that
is broken is said in a sentence. A detector may declare its scope; it cannot leave out a check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from detector.base import Detector
from detector.contract import declared, rows, stepping
from detector.contract.material import BrokenContractError, Material

__all__ = ["CHECKS", "BrokenContractError", "Check", "Material", "check_detector"]

Check = Callable[[Detector, Material], None]


_ORDER: tuple[Check, ...] = (
    stepping.check_scores_are_finite_or_missing,
    stepping.check_severity_is_a_rank,
    stepping.check_state_is_as_declared,
    stepping.check_step_is_pure,
    stepping.check_an_empty_frame_is_judged,
    stepping.check_a_missing_reading_changes_nothing,
    stepping.check_nothing_is_said_without_a_named_metric,
    stepping.check_time_may_jump,
    rows.check_the_order_of_rows_does_not_matter,
    rows.check_a_row_does_not_depend_on_other_nodes,
    rows.check_a_row_depends_on_others_only_as_declared,
    rows.check_gpus_come_and_go,
    rows.check_the_state_survives_a_snapshot,
    rows.check_the_cost_of_a_row,
    rows.check_reaches_enter,
    rows.check_quiet_on_a_healthy_hour,
    declared.check_every_kind_is_worded,
    declared.check_kinds_are_words_of_the_contract,
    declared.check_metrics_are_in_the_catalogue,
    declared.check_documented,
)

#: Every rule by its name, what breaks others first; its docstring is the rule.
CHECKS: Mapping[str, Check] = MappingProxyType(
    {check.__name__.removeprefix("check_"): check for check in _ORDER}
)


def check_detector(detector: Detector, material: Material | None = None) -> None:
    """Run every check.

    Parameters
    ----------
    detector
        The one to check, with its default parameters.
    material
        Frames in which it speaks, where the rough telemetry holds none.

    Raises
    ------
    BrokenContractError
        Naming the first rule that is broken, and how.
    """
    for name, check in CHECKS.items():
        try:
            check(detector, material or Material())
        except BrokenContractError as exc:
            rule = name.replace("_", " ")
            raise BrokenContractError(f"{detector.name} breaks '{rule}': {exc}") from exc
