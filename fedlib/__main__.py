"""`python -m fedlib`: see `python -m fedlib --help`."""

import signal
import sys

from fedlib.cli import main


def _terminated(*_: object) -> None:
    """Let `kill` end a run as ^C does: what it has trained is stored first."""
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without ▁▂▃
    sys.exit(main())
