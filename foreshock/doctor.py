"""``foreshock doctor``: looks at everything foreshock stands on, and says what to do.

The list of checks is all there is to register; which of them matter depends on what the machine
is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foreshock.checkups import (
    Check,
    Grade,
    Result,
    check_bus,
    check_clock,
    check_data_dir,
    check_devices,
    check_driver,
    check_ports,
    check_settings,
    check_space,
    check_store,
    check_topics,
    fail,
    warn,
)
from foreshock.config import Loaded
from foreshock.nodechecks import check_kernel_log, check_kubelet
from foreshock.roles import Role

__all__ = ["CHECKS", "Grade", "Result", "checks_for", "examine", "show"]


#: Every check, in the order in which it is shown.
CHECKS: tuple[Check, ...] = (
    check_settings,
    check_driver,
    check_devices,
    check_kernel_log,
    check_kubelet,
    check_bus,
    check_topics,
    check_data_dir,
    check_space,
    check_store,
    check_clock,
    check_ports,
)


#: Checks that matter to one service only.
_ONLY_FOR: Mapping[Check, Role] = MappingProxyType(
    {
        check_driver: Role.COLLECT,
        check_devices: Role.COLLECT,
        check_kernel_log: Role.COLLECT,
        check_kubelet: Role.COLLECT,
        check_store: Role.SERVE,
    }
)

#: Check to the one without which it cannot be made: an absent broker is waited for once.
_STANDS_ON: Mapping[Check, Check] = MappingProxyType({check_topics: check_bus})


def checks_for(roles: Sequence[Role]) -> tuple[Check, ...]:
    """Return the checks that matter to a machine; all of them where nothing is said.

    Examples
    --------
    >>> check_driver in checks_for([Role.DETECT]), check_driver in checks_for([])
    (False, True)
    """
    wanted = set(roles or Role)
    return tuple(check for check in CHECKS if _ONLY_FOR.get(check) in {None, *wanted})


def examine(loaded: Loaded, checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Run the checks. One that breaks is a failed check and stops no other."""
    results: list[Result] = []
    failed: set[Check] = set()
    for check in checks:
        below = _STANDS_ON.get(check)
        if below in failed:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            results.append(warn(name, "not asked, the bus does not work", "Mend the bus first."))
            continue
        try:
            results.append(check(loaded))
        except Exception as exc:  # noqa: BLE001 - a doctor reports what it cannot examine
            name = check.__name__.removeprefix("check_").replace("_", " ")
            results.append(fail(name, f"the check itself failed: {type(exc).__name__}: {exc}"))
        if results[-1].grade == Grade.FAIL:
            failed.add(check)
    return results


_STYLES = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}


def show(results: Sequence[Result], console: Console) -> None:
    """Print the results: a table on a screen, else one unbroken line each."""
    if not console.is_terminal:
        for result in results:
            advice = f" What to do: {result.advice}" if result.advice else ""
            found = "; ".join(result.found.splitlines())
            line = f"{result.grade:<4}  {result.name}: {found}.{advice}".replace("..", ".")
            console.print(Text(line), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for result in results:
        # As Text: brackets in what was found are no mark-up.
        cells = (result.name, result.found, result.advice)
        grade = Text(result.grade, style=_STYLES[result.grade])
        table.add_row(grade, *(Text(cell) for cell in cells))
    console.print(table)
