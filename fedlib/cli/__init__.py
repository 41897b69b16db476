"""The command line: everything that a machine without Jupyter needs.

Exit codes: 0 all went well, 1 something failed, 2 the question was wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from fedlib.cli.parser import Usage, make_parser
from fedlib.values import UnknownName

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask and return the exit code; errors of ours are one message."""
    try:
        code = _answer(arguments)
        sys.stdout.flush()  # here, where it can still be caught that nobody reads on
        return code
    except BrokenPipeError:  # `fedlib runs | head`, and that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _answer(arguments: Sequence[str] | None) -> int:
    try:
        asked = make_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    try:
        # A command's module is imported when asked for: torch takes seconds, --help need not.
        module = import_module(f"fedlib.cli.{asked.module}")
        return int(getattr(module, asked.command)(asked) or 0)
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "interrupted: the same command continues from what is stored"
        print(f"\nfedlib: {said}", file=sys.stderr)
        return 130
    except Exception as error:
        if asked.debug or not _is_ours(error):
            raise
        print(f"fedlib: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnknownName | Usage) else 1


def _is_ours(error: Exception) -> bool:
    """Return whether the message is enough: ours, or of a value out of range."""
    return isinstance(error, ValueError) or type(error).__module__.startswith("fedlib.")
