"""The imports of every notebook of the companion: ``from papers.notebook import *``.

It provides

- ``np``, ``pd``, ``plt``, ``torch``, ``w`` (ipywidgets), ``display``, ``cache`` and ``replace``;
- training and evaluation from fedrun and fedlib: ``Experiment``, ``run``, ``run_with_state``,
  ``play_round``, ``FunctionalModel``, ``generator``, ``class_names``, ``federated``;
- stored or trained runs: ``panels``, ``several``, ``stored``, ``only_stored``, ``having``,
  ``on_real_data``, ``run_here``, ``costs``;
- figures and tables: ``frames``, ``plotting``, ``explorer``, ``follow``, ``watch``, ``data_menu``,
  ``claims_table``, ``folded``, ``what_ran``, ``in_short``;
- from the papers ``published``, ``tested``, and the names of methods that several papers have.

Algorithms, partitioners, models and tasks are imported from ``fedlib`` by name.
"""

from dataclasses import replace
from functools import cache

import ipywidgets as w
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib import pyplot as plt

from companion import frames, plotting
from companion.panels import (
    costs,
    having,
    on_real_data,
    only_stored,
    panels,
    run_here,
    several,
    stored,
)
from companion.sections import federated
from companion.what_ran import what_ran
from companion.widgets import (
    claims_table,
    data_menu,
    explorer,
    folded,
    follow,
    name_scales_in_tables,
    watch,
)
from fedlib.data import class_names
from fedlib.engine import play_round
from fedlib.models import FunctionalModel
from fedlib.randomness import generator
from fedrun import Experiment, run, run_with_state
from papers.claimed import tested
from papers.published import published
from papers.scaled import FEDAVG, LOCAL, MAJORITY, TUNED
from papers.told import in_short

__all__ = [
    "FEDAVG", "LOCAL", "MAJORITY", "TUNED", "Experiment", "FunctionalModel", "Markdown",
    "cache", "claims_table", "class_names", "costs", "data_menu", "display", "explorer",
    "federated", "folded", "follow", "frames", "generator", "having", "in_short", "np",
    "on_real_data", "only_stored", "panels", "pd", "play_round", "plotting", "plt", "published",
    "replace", "run", "run_here", "run_with_state", "several", "stored", "tested",
    "torch", "w", "watch", "what_ran",
]  # fmt: skip

name_scales_in_tables()
