"""Cohort training and evaluation. Knows no algorithm by name and reads no file."""

from fedlib.engine.costs import BLOCK
from fedlib.engine.evaluate import (
    Encoded,
    Scores,
    encode,
    evaluate,
    evaluate_everywhere,
    evaluate_global,
    tabulate,
)
from fedlib.engine.protocol import Algorithm, Prediction, State, Update, playing, predicting
from fedlib.engine.rounds import Report, cohort_size, play_round, select
from fedlib.engine.seen import NOTHING, Known
from fedlib.engine.train import FEATURES, EarlyStop, Phase, TrainingDiverged, noise_of
from fedlib.engine.vmap_clients import vmap_clients

__all__ = [
    "BLOCK",
    "FEATURES",
    "NOTHING",
    "Algorithm",
    "EarlyStop",
    "Encoded",
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
