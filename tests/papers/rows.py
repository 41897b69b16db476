"""Tables of runs made by hand, as frames have them, and what claims of them come to."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from companion.claims import EQUAL
from papers.registry import SECTIONS

LOGGED = {"seed": 0, "round": 9, "metric": "test_accuracy", "client": -1, "expert": -1, "item": ""}
COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]


def settings_of(scale):
    """Every section and data set of a scale."""
    return [(section, d) for section in SECTIONS.values() for d in section.settings(scale)]


def frame_of(*rows):
    """A frame of rows by name; what all logged rows have may be left out, places are NaN."""
    return pd.DataFrame([{**LOGGED, **row} for row in rows])


def logged(*parts, places=()):
    """A frame of lists of rows in the order of ``COLUMNS``, and of the places that follow."""
    return pd.DataFrame([row for part in parts for row in part], columns=[*COLUMNS, *places])


def verdicts(tested):
    return [claim.verdict for claim in tested]


def initials(tested):
    """Verdicts by first letters: holds, contradicted, undecided, not tested; =: no difference."""
    return "".join("=" if v == EQUAL else v[0] for v in verdicts(tested))


def runs_of(group):
    """Parametrise a test by the ``code`` of made runs and the initials of what claims come to."""
    table = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text())[group]
    return pytest.mark.parametrize(("code", "expected"), table.items())
