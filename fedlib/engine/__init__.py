"""Cohort training and evaluation. Knows no algorithm by name and reads no file."""

from fedlib.engine.evaluate import (
    BLOCK,
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
from fedlib.engine.train import EarlyStop, Phase, TrainingDiverged
from fedlib.engine.vmap_clients import vmap_clients

__all__ = [
    "BLOCK",
    "Algorithm",
    "EarlyStop",
    "Encoded",
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
    "play_round",
    "playing",
    "predicting",
    "select",
    "tabulate",
    "vmap_clients",
]
