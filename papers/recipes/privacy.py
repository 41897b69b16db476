"""What a server learns about labels from one message of every client (000, App. C)."""

from __future__ import annotations

from companion.sections import Run, Section, Setting, federated
from fedlib.algorithms import FedAvg, FedMix, Personal
from fedlib.engine import Report, State, play_round
from fedlib.federation import Federation
from fedlib.privacy import NoisyFedMix
from fedlib.runs import Experiment, begun, run_with_state
from papers.recipes.communication import BIASED
from papers.recipes.label_skew import FEDAVG, FEDMIX, SETTINGS, fedavg, fedmix

STEP, EPOCH, TRAINED = "one full-batch step", "one epoch", "trained, one epoch"


def _plan(setting: Setting, dataset: str) -> list[Run]:
    """Return one round with all clients, from a fresh or a trained model, with an audit."""
    kinds = {
        FEDAVG: (FedAvg, fedavg(setting)),
        BIASED: (Personal, fedavg(setting)),
        FEDMIX: (FedMix, fedmix(setting)),
    }
    once = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1, "audit": True}
    runs = []
    for method, (kind, fields) in kinds.items():
        whole = kind(**{**fields, "batch_size": None})
        one = kind(**fields)
        messages = {
            STEP: federated(setting, whole, **once),
            EPOCH: federated(setting, one, **once),
            TRAINED: federated(setting, one, after=federated(setting, one), **once),
        }
        runs += [Run(method, made, {"message": message}) for message, made in messages.items()]
    return runs


def with_noise(setting: Setting, noise: float) -> Experiment:
    """Return an ordinary training run in which clients hide what they send of phi behind noise."""
    return federated(setting, NoisyFedMix(noise=noise, **fedmix(setting)))


def overheard(experiment: Experiment) -> tuple[Federation, State, Report]:
    """Return the federation, the state before and the report of an audited run, played anew.

    On the CPU, in memory; a first stage is trained unless it is stored. What an audit stores are
    its findings: this has the messages themselves.
    """
    fed = experiment.task.build(experiment.seed, "cpu")
    stages = [run_with_state(stage, device="cpu", progress=False) for stage in experiment.before]
    state = begun(experiment, fed, [last for _, last in stages])
    before = State(dict(state.shared), {}, dict(state.optimizer), dict(state.memory))
    seed, cohort = experiment.seed, experiment.cohort
    _, report = play_round(experiment.algorithm, fed, state, round=0, seed=seed, cohort=cohort)
    return fed, before, report


PRIVACY = Section(
    "privacy",
    {
        "quick": SETTINGS["quick"],
        "standard": {"cifar10": SETTINGS["standard"]["cifar10"]},
        "paper": {"cifar10": SETTINGS["paper"]["cifar10"]},
    },
    _plan,
)
