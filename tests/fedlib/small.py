"""Experiments of a second that tests of runs share, and how they are played and compared."""

import importlib

import pytest

from benchmarks.robustness.tiny import MIX, TASK, bits
from fedlib import FedAvg, Local, Optimizer
from fedrun import Experiment, run, sweep
from fedrun import tiny as AVG

__all__ = ["ALONE", "AVG", "BAD", "MIX", "TASK", "TUNED", "bits", "go", "play", "running"]

# The package exports a function of this module's name.
running = importlib.import_module("fedrun.train")

ALONE = Experiment(TASK, Local(batch_size=5), rounds=4, cohort=3, evaluate_every=2)
TUNED = Experiment(TASK, Local(batch_size=5), 2, cohort=2, evaluate_every=2, first_stage=AVG)
EXPLODING = FedAvg(client=Optimizer("sgd", lr=1e30), epochs=3, batch_size=2)
BAD = Experiment(TASK, EXPLODING, rounds=2, cohort=2)


def play(experiment):
    return run(experiment, device="cpu", progress=False)


def go(experiments, workers=1, **options):
    return sweep(experiments, workers=workers, device="cpu", progress=False, **options)


def undisturbed(experiment, tmp_path):
    """The bits of a run in a store of its own, in which nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_RUNS", str(tmp_path / "undisturbed"))
        play(experiment)
        return bits(experiment)


def interrupted(experiment, completed):
    """Play an experiment and stop it after a round, which is stored."""

    def stop(done, *_):
        if done == completed:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setenv("FEDLIB_CHECKPOINT_SECONDS", "-1")
        run(experiment, device="cpu", progress=stop)


class Rounds:
    """Counts the rounds that are played."""

    def __init__(self, monkeypatch):
        self.played, self._play = 0, running.play_round
        monkeypatch.setattr(running, "play_round", self)

    def __call__(self, *args, **kwargs):
        self.played += 1
        return self._play(*args, **kwargs)
