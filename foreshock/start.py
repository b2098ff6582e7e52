"""The command's first lines: whatever is pressed while the program loads, it ends quietly."""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main() -> None:
    """Load and run the command; Ctrl-C before it can listen ends it without a traceback."""
    try:
        from foreshock.cli import main as run  # noqa: PLC0415 - loading takes half a second

        run()
    except KeyboardInterrupt:
        sys.stderr.write("foreshock: stopped before it had begun.\n")
        raise SystemExit(_INTERRUPTED) from None
