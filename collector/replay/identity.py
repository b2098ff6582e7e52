"""Who is who in a recording: a GPU is its UUID, or its bus address, never its index alone.

Where a recording names no UUID, one is made up from what it does say, so that the same
recording gives the same ids on every replay. A new model under an old index is another GPU.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.pci import canonical_pci

__all__ = ["Devices", "new_boot_id"]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.replay")
_ZERO_UUID = re.compile(r"(GPU-|MIG-)?[0-]+$")


def new_boot_id(node: str, first_ts: int, generation: int) -> str:
    """Make the boot id of a replay: the same for the same recording, every time."""
    return str(uuid.uuid5(_NAMESPACE, f"boot/{node}/{first_ts}/{generation}"))


@dataclass(slots=True, kw_only=True)
class Devices:
    """Give every GPU of a recording one id.

    Parameters
    ----------
    table
        UUIDs by index from a column map.
    """

    table: Mapping[int, str] = field(default_factory=dict)
    _by_place: dict[tuple[str, str], str] = field(default_factory=dict)

    def identify(
        self,
        node: str,
        *,
        uuid: str | None,
        pci: str | None,
        index: int | None,
        model: str | None,
    ) -> str:
        """Return the id of the GPU that a row is about.

        A GPU that is lost may say nothing but its place: it is the GPU last seen there.
        A UUID of zeros is a masked one and says nothing.
        """
        place = (node, _bus(pci) if pci else f"index {index}")
        if uuid is not None and not _ZERO_UUID.match(uuid):
            found = uuid
        elif index is not None and index in self.table:
            found = self.table[index]
        elif model is None and place in self._by_place:
            found = self._by_place[place]
        else:
            found = _made_up(*place, model or "")
        self._by_place[place] = found
        if pci and index is not None:
            self._by_place[node, f"index {index}"] = found
        return found

    def at_bus(self, node: str, pci: str) -> str | None:
        """Return the id of the GPU last seen at a PCI address, if any."""
        return self._by_place.get((node, _bus(pci)))


def _made_up(node: str, place: str, model: str) -> str:
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'gpu/{node}/{place}/{model}')}"


def _bus(pci: str) -> str:
    return f"pci {canonical_pci(pci) or pci.lower()}"
