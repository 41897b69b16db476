"""Tables of tests that lie in files beside them."""

import tomllib
from pathlib import Path

import pytest

GOLDEN, REFUSED = (
    tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())
    for name in ("golden", "refused")
)


def refused(room):
    """Parametrise a test by the ``code`` that a room refuses and the ``message`` of its error."""
    return pytest.mark.parametrize(("code", "message"), REFUSED[room].items())
