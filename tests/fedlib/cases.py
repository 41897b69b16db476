"""Cases of tests that lie in tables beside them."""

import tomllib
from pathlib import Path

import pytest


def table_of(name):
    """A TOML file of this folder."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())


BATTERY_CODE, GOLDEN, REFUSED = map(table_of, ("battery", "golden", "refused"))


def refused(group):
    """Parametrise a test by the ``code`` that a group lists and the ``message`` of its error."""
    return pytest.mark.parametrize(("code", "message"), REFUSED[group].items())
