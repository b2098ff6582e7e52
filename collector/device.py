"""The door to NVML: names that may not exist, calls that may fail, codes that mean something.

NVML renames functions between majors (throttle reasons became event reasons, the plain
temperature call is announced for removal), so nothing is called by attribute: a name is looked
up when it is used, and a missing one counts as the driver's own "function not found".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from schemas.errors import DeviceError
from schemas.sample import ValueStatus

__all__ = ["Call", "Code", "NvmlDoor", "NvmlModule", "call", "status_of", "unsupported"]


class Code(IntEnum):
    """NVML return codes the collector tells apart (nvml.h, ``nvmlReturn_t``).

    The negative ones are the collector's own: no news since the last reading, and an answer
    that cannot be true.
    """

    IMPLAUSIBLE = -2
    STALE = -1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


#: Codes after which an older call of the same meaning is tried.
_FALL_BACK = frozenset(
    {Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH}
)

_WORDS: dict[int, ValueStatus] = {
    Code.NO_PERMISSION: ValueStatus.NO_PERMISSION,
    Code.STALE: ValueStatus.STALE,
    Code.IMPLAUSIBLE: ValueStatus.IMPLAUSIBLE,
}


class NvmlModule(Protocol):
    """The little that every version of the binding has; the rest is looked up by name."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own name
        """Load the library and attach to the driver."""
        ...

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's own name
        """Let go of the driver."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One question to a device: (name, arguments after the handle), newest alternative first."""

    alternatives: tuple[tuple[str, tuple[int, ...]], ...]

    def or_else(self, name: str, *args: int) -> Call:
        """Return the call with an older alternative behind it."""
        return Call((*self.alternatives, (name, args)))


def call(name: str, *args: int) -> Call:
    """Make a call without alternatives."""
    return Call(((name, args),))


def unsupported(code: int) -> bool:
    """Tell whether the code means that the device or driver does not offer this at all."""
    return code in _FALL_BACK


def status_of(code: int) -> str:
    """Translate a return code into the status beside a missing value.

    Examples
    --------
    >>> status_of(3), status_of(4), status_of(999)
    ('unsupported', 'no_permission', 'error:999')
    """
    if unsupported(code):
        return str(ValueStatus.UNSUPPORTED)
    word = _WORDS.get(code)
    return f"error:{code}" if word is None else str(word)


class NvmlDoor:
    """Calls NVML by name and translates its errors.

    Parameters
    ----------
    nvml
        The module ``pynvml``, or anything with the same names.
    """

    def __init__(self, nvml: NvmlModule) -> None:
        self._nvml = nvml

    def invoke(self, name: str, *args: object) -> Any:
        """Call one function; the result is of the binding's own type.

        Raises
        ------
        DeviceError
            With NVML's code; 13 if the binding has no such name or no such arguments.
        """
        function = getattr(self._nvml, name, None)
        if function is None:
            raise DeviceError(Code.FUNCTION_NOT_FOUND, f"{name} is not in this binding")
        try:
            return function(*args)
        except self._nvml.NVMLError as exc:
            code = getattr(exc, "value", Code.UNKNOWN)
            raise DeviceError(int(code), f"{name}: {exc}") from exc
        except TypeError as exc:  # an older binding without the version argument
            raise DeviceError(Code.FUNCTION_NOT_FOUND, f"{name}: {exc}") from exc
        except (ValueError, OSError) as exc:  # text that is no UTF-8, a library that cannot load
            raise DeviceError(Code.UNKNOWN, f"{name}: {exc}") from exc

    def structure(self, name: str) -> Any:
        """Make one of the binding's structures.

        Raises
        ------
        DeviceError
            With code 13 if the binding has no such structure.
        """
        make = getattr(self._nvml, name, None)
        if make is None:
            raise DeviceError(Code.FUNCTION_NOT_FOUND, f"{name} is not in this binding")
        return make()

    def ask(self, handle: object, question: Call) -> Any:
        """Ask a device, falling back to older alternatives.

        Raises
        ------
        DeviceError
            Of the last alternative tried.
        """
        *newer, last = question.alternatives
        for name, args in newer:
            try:
                return self.invoke(name, handle, *args)
            except DeviceError as exc:
                if not unsupported(exc.code):
                    raise
        name, args = last
        return self.invoke(name, handle, *args)
