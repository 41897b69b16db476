"""Tables of runs made by hand, as frames have them."""

from __future__ import annotations

import pandas as pd

LOGGED = {"seed": 0, "round": 9, "metric": "test_accuracy", "client": -1, "expert": -1, "item": ""}


def frame_of(*rows):
    """A frame of rows by name; what all logged rows have may be left out, places are NaN."""
    return pd.DataFrame([{**LOGGED, **row} for row in rows])
