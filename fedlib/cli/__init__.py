"""The command line: everything that a machine without Jupyter needs.

Exit codes: 0 all went well, 1 something failed, 2 the question was wrong, 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from fedlib.cli.commands import app
from fedlib.cli.experiments import Usage
from fedlib.values import UnknownName

__all__ = ["Usage", "app", "main"]
NAME = "python -m fedlib"
# What typer raises when a question is wrong: every version calls it something else.
Refused: Any = typer.BadParameter.__mro__[-4]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask and return the exit code; errors of ours are one message."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        code = _answer([word for word in words if word != "--debug"], "--debug" in words)
        sys.stdout.flush()  # here, where it can still be caught that nobody reads on
        return code
    except (BrokenPipeError, SystemExit) as stop:  # `fedlib runs | head`, and that is no error
        broken = isinstance(stop.__context__, BrokenPipeError)  # Rich exits with 1 because of it
        if not broken and not isinstance(stop, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _answer(words: list[str], debug: bool) -> int:
    try:
        # Not typer's own main, which forgets what an interruption has said.
        command = get_command(app)
        with command.make_context(NAME, words) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as stop:
        return stop.exit_code
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "interrupted: the same command continues from what is stored"
        print(f"\nfedlib: {said}", file=sys.stderr)
        return 130
    except Refused as error:
        said = " ".join(error.format_message().split())
        print(f"fedlib: {said}\n(see {NAME} --help)", file=sys.stderr)
        return 2
    except Exception as error:
        # A message is enough where it is ours, or of a value out of range.
        ours = isinstance(error, ValueError) or type(error).__module__.startswith("fedlib.")
        if debug or not ours:
            raise
        print(f"fedlib: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnknownName | Usage) else 1
