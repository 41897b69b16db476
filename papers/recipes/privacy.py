"""What a server learns about labels from one message of every client (000, App. C)."""

from __future__ import annotations

from companion.sections import Section, Setting, federated
from fedlib.algorithms import FedAvg, FedMix, Personal
from fedlib.engine import Report, State, play_round
from fedlib.federation import Federation
from fedlib.privacy import NoisyFedMix
from fedlib.runs import Experiment, begun, run_with_state
from papers.recipes.communication import BIASED
from papers.recipes.label_skew import FEDAVG, FEDMIX, SETTINGS, fedavg, fedmix

STEP, EPOCH, TRAINED = "one full-batch step", "one epoch", "trained, one epoch"


def audited(method: str, stage: str) -> str:
    """Return the name of the run in which every client of a method sends one message."""
    return f"{method}: {stage}"


def _plan(setting: Setting, dataset: str) -> dict[str, Experiment]:
    """Return one round with all clients, from a fresh or a trained model, with an audit."""
    kinds = {
        FEDAVG: (FedAvg, fedavg(setting)),
        BIASED: (Personal, fedavg(setting)),
        FEDMIX: (FedMix, fedmix(setting)),
    }
    once = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1, "audit": True}
    runs = {}
    for method, (kind, fields) in kinds.items():
        whole = kind(**{**fields, "batch_size": None})
        runs[audited(method, STEP)] = federated(setting, whole, **once)
        runs[audited(method, EPOCH)] = federated(setting, kind(**fields), **once)
        trained = federated(setting, kind(**fields))
        runs[audited(method, TRAINED)] = federated(setting, kind(**fields), after=trained, **once)
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
    before = State(dict(state.shared), {}, dict(state.server))
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
