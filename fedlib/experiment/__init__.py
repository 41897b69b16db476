"""What a run is: spec, key, run folder, resume."""

from fedlib.experiment.run import assess, rounds, run, run_with_state
from fedlib.experiment.spec import Experiment
from fedlib.experiment.store import Result, export, exported, find

__all__ = [
    "Experiment",
    "Result",
    "assess",
    "export",
    "exported",
    "find",
    "rounds",
    "run",
    "run_with_state",
]
