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
from fedlib.engine.lift import lift
from fedlib.engine.protocol import Algorithm, Prediction, State, playing, predicting
from fedlib.engine.rounds import Report, cohort_size, play_round, select
from fedlib.engine.train import EarlyStop, Phase, TrainingDiverged

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
    "cohort_size",
    "encode",
    "evaluate",
    "evaluate_everywhere",
    "evaluate_global",
    "lift",
    "play_round",
    "playing",
    "predicting",
    "select",
    "tabulate",
]
