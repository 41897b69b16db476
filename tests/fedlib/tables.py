"""Tables of tests that lie in files beside them."""

import tomllib
from pathlib import Path

import pytest


def refused(room):
    """Parametrise a test by the ``code`` that a room refuses and the ``message`` of its error."""
    table = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())[room]
    return pytest.mark.parametrize(("code", "message"), table.items())
