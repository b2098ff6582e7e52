"""Gzip read to the last byte that can be had: what is damaged ends the file, and says why.

The standard library's reader raises in the middle of a read, and what the same read had unpacked
before is gone: of a recording that a crash cut off, that would be the newest lines.
"""

from __future__ import annotations

import io
import zlib
from typing import Any, BinaryIO

__all__ = ["GZIP_MAGIC", "Unpacked"]

GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 31  # zlib's word for a gzip header and the largest window
_CHUNK_BYTES = 8192


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a gzip file, of all its members.

    Parameters
    ----------
    packed
        The file, at its beginning.
    """

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        self._packed = packed
        self._unpacker = zlib.decompressobj(_GZIP)
        self._begun = False
        self._ready = b""
        self._ended = False
        #: Why the file ends early, once all that could be unpacked was read; else None.
        self.fault: str | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # Any: whatever takes bytes, as in the base class
        """Fill the buffer with what comes next; 0 at the end, early or not."""
        view = memoryview(buffer)
        while not self._ready and not self._ended:
            self._ready = self._unpack(self._packed.read(_CHUNK_BYTES))
        found, self._ready = self._ready[: len(view)], self._ready[len(view) :]
        view[: len(found)] = found
        return len(found)

    def _unpack(self, chunk: bytes) -> bytes:
        if not chunk:
            return self._finish()
        out = b""
        while chunk and not self._ended:
            if self._unpacker.eof:
                chunk = self._next_member(chunk)
            else:
                out += self._feed(chunk)
                chunk = self._unpacker.unused_data
        return out

    def _next_member(self, rest: bytes) -> bytes:
        """Begin another member if there is one; zeros are padding, all else is a fault."""
        rest = rest.lstrip(b"\0")
        if not rest:
            return b""
        if not rest.startswith(GZIP_MAGIC[: len(rest)]):
            self._end("there is something behind the compressed data that is none")
            return b""
        self._unpacker, self._begun = zlib.decompressobj(_GZIP), False
        return rest

    def _feed(self, chunk: bytes) -> bytes:
        """Unpack a chunk; if it is damaged, as much of it as can be."""
        self._begun = True
        before = self._unpacker.copy()
        try:
            return self._unpacker.decompress(chunk)
        except zlib.error as exc:
            reason = str(exc)
        # In pieces of one byte: an error loses the piece that it is in.
        out, self._unpacker = b"", before
        try:
            for at in range(len(chunk)):
                out += self._unpacker.decompress(chunk[at : at + 1])
        except zlib.error as exc:
            reason = str(exc)
        self._end(f"the compressed data is damaged from here on ({reason})")
        return out

    def _finish(self) -> bytes:
        rest = b"" if self._unpacker.eof or not self._begun else self._unpacker.flush()
        self._ended = True
        if self._begun and not self._unpacker.eof:
            self._end("the compressed data is truncated: the file ends in the middle of it")
        return rest

    def _end(self, fault: str) -> None:
        self._ended, self.fault = True, f"{fault}; what came before is used"
