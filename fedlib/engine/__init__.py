"""Cohort training and evaluation. Knows no algorithm by name and reads no file."""

from fedlib.engine.costs import BLOCK
from fedlib.engine.evaluate import (
    Scores,
    encode,
    evaluate,
    evaluate_everywhere,
    evaluate_global,
    tabulate,
)
from fedlib.engine.program import vmap_clients
from fedlib.engine.protocol import (
    FEATURES,
    Algorithm,
    EarlyStop,
    Phase,
    Prediction,
    State,
    Update,
    noise_of,
    playing,
    predicting,
)
from fedlib.engine.rounds import Report, cohort_size, play_round, select
from fedlib.engine.train import TrainingDiverged
from fedlib.federation import UNSEEN, Known

__all__ = [
    "BLOCK",
    "FEATURES",
    "UNSEEN",
    "Algorithm",
    "EarlyStop",
    "Known",
    "Phase",
    "Prediction",
    "Report",
    "Scores",
    "State",
    "TrainingDiverged",
    "Update",
    "cohort_size",
    "encode",
    "evaluate",
    "evaluate_everywhere",
    "evaluate_global",
    "noise_of",
    "play_round",
    "playing",
    "predicting",
    "select",
    "tabulate",
    "vmap_clients",
]
