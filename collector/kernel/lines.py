"""What the NVIDIA kernel module says: one message of the kernel, without its prefix.

Pure. Only known patterns at the very beginning of a message become facts: healthy machines
write the word ERROR, and other programs quote such lines.

Spellings follow the public open kernel module (``NVRM: Xid (PCI:...)``; a partition as
``GPU-I:03 GPU-CI:01``; ``nvidia-nvswitch3: SXid (PCI:...)``) and logs of the field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.pci import canonical_pci
from schemas.sample import EventKind

__all__ = ["Fact", "MessageReader", "is_of_interest"]

#: A message is kept to so many characters: NVLink lines carry long register dumps.
MAX_MESSAGE = 500
_PCI = r"(?:PCI:)?(?P<pci>(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"(?:NVRM: (?P<xid>Xid)|(?:NVRM|nvidia-nvswitch\d*): SXid) \({_PCI}"
    r"(?: GPU-I:(?P<gi>\d+))?(?: GPU-CI:(?P<ci>\d+))?\): (?P<code>\d{1,9})(?:$|[,\s](?P<rest>.*))",
    re.DOTALL,
)
_BEGINS_XID = re.compile(r"(?:NVRM: S?Xid|nvidia-nvswitch\d*: SXid) ?\(")
_PROCESS = re.compile(
    r"\s*pid=(?:'?<unknown>'?|(?P<pid>\d{1,10}))(?:, name=(?P<name>.*?))?(?:, |$)", re.DOTALL
)
_OFF_BUS = re.compile(rf"NVRM: GPU (?:at )?{_PCI}:?(?: GPU)? has fallen off the bus")
# A message of three lines: the address, the PCI id, the verdict.
_THE_GPU = re.compile(rf"NVRM: The NVIDIA GPU {_PCI}")
_VERDICT = re.compile(r"NVRM: fallen off the bus and is not responding")
_LINES_BETWEEN = 3
# Second and third line of one NVSwitch error: details of the first, no further errors.
_SXID_DETAIL = re.compile(r"\s*(?:Severity \d|Data \{)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that the kernel module reported.

    Parameters
    ----------
    kind
        ``xid``, ``sxid`` or ``kernel`` (fallen off the bus, without a number).
    pci
        Address of the GPU or NVSwitch as written, without the word PCI.
    message
        The message without its prefix, at most 500 characters.
    code
        Xid or SXid.
    gpu_instance, compute_instance
        The MIG partition, where the line names one.
    pid, process
        Who happened to ask, where the line says it.
    """

    kind: str
    pci: str
    message: str
    code: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pid: int | None = None
    process: str | None = None


def is_of_interest(text: str) -> bool:
    """Tell cheaply whether a line can matter at all: most lines of a log do not."""
    return "NVRM" in text or "SXid" in text


class MessageReader:
    """Reads the messages of one log in order.

    Attributes
    ----------
    malformed
        Messages that begin like an Xid line and are none: cut in the middle.

    Examples
    --------
    >>> fact = MessageReader().read("NVRM: Xid (PCI:0000:41:00 GPU-I:03): 94, pid=42, Contained")
    >>> fact.code, fact.pci, fact.gpu_instance, fact.pid
    (94, '0000:41:00', 3, 42)
    >>> MessageReader().read("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected")
    """

    def __init__(self) -> None:
        self.malformed = 0
        self._named: str | None = None
        self._left = 0

    def read(self, message: str) -> Fact | None:
        """Return what a message reports, or None for everything that is no known report."""
        fact = self._over_lines(message)
        if fact is not None:
            return fact
        match = _XID.match(message)
        if match is not None:
            return _xid(match, message)
        if _BEGINS_XID.match(message):
            self.malformed += 1
            return None
        match = _OFF_BUS.match(message)
        return None if match is None else _off_bus(match["pci"], message)

    def _over_lines(self, message: str) -> Fact | None:
        """Follow the message whose address and verdict stand on different lines."""
        match = _THE_GPU.match(message)
        if match is not None:
            self._named, self._left = match["pci"], _LINES_BETWEEN
            return None
        named = self._named
        if named is None:
            return None
        self._left -= 1
        if _VERDICT.match(message):
            self._named = None
            return _off_bus(
                named,
                f"NVRM: The NVIDIA GPU {named} has fallen off the bus and is "
                "not responding to commands.",
            )
        if self._left <= 0:
            self._named = None
        return None


def _off_bus(pci: str, message: str) -> Fact:
    return Fact(kind=EventKind.KERNEL, pci=_short(pci), message=message[:MAX_MESSAGE])


def _xid(match: re.Match[str], message: str) -> Fact | None:
    rest = match["rest"] or ""
    kind = EventKind.XID if match["xid"] else EventKind.SXID
    if kind == EventKind.SXID and _SXID_DETAIL.match(rest):
        return None
    process = _PROCESS.match(rest)
    name = process["name"] if process else None
    return Fact(
        kind=kind,
        pci=_short(match["pci"]),
        message=message[:MAX_MESSAGE],
        code=int(match["code"]),
        gpu_instance=_number(match["gi"]),
        compute_instance=_number(match["ci"]),
        pid=_number(process["pid"]) if process else None,
        process=None if name is None or "<unknown>" in name else name[:MAX_MESSAGE],
    )


def _short(pci: str) -> str:
    """Write an address as the kernel mostly does, with the domain and without the function."""
    return (canonical_pci(pci) or pci).partition(".")[0]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
