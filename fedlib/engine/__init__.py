"""Cohort training and evaluation. Knows no algorithm by name and reads no file."""

from fedlib.engine.evaluate import encode, evaluate, evaluate_everywhere, evaluate_global, tabulate
from fedlib.engine.program import vmap_clients
from fedlib.engine.protocol import (
    Algorithm,
    Cohort,
    EarlyStop,
    Phase,
    Prediction,
    State,
    TrainingDiverged,
    Update,
    uses_precomputed,
)
from fedlib.engine.rounds import Report, play_round, select
from fedlib.engine.selection import Selection
from fedlib.engine.width import BLOCK
