"""Odd clients: empty, of one example, of one class, alone; every algorithm copes or refuses.

Every algorithm plays two rounds with everybody, and is evaluated; batches are larger than any
client. All numbers must be finite, or the refusal clear.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import algorithms
from benchmarks.robustness.plan import Plan, Row, judged
from fedlib.algorithms import FedAvg, Mixture
from fedlib.algorithms.local import LaterStage
from fedlib.engine import evaluate, evaluate_everywhere, evaluate_global, play_round
from fedlib.federation import ClientData, Federation
from fedlib.models import MLP, FunctionalModel

CLASSES, SHAPE = 3, (6, 6, 1)
Labels = Sequence[Sequence[int]]

ODD: dict[str, Labels] = {
    "one client only": [[0, 1, 2, 0, 1]],
    "one example each": [[0], [1], [2]],
    "one client of one example": [[0, 1, 2, 0, 1, 2], [1]],
    "an empty client": [[0, 1, 2, 2], [], [1, 0, 1]],
    "one class each": [[0] * 4, [1] * 5, [2] * 3],
    "a class that nobody trains on": [[0, 1, 0, 1], [1, 1, 0]],
    "all of one class": [[2, 2, 2], [2, 2]],
}
"""The training labels of every client of a federation; batches of 64 are larger than any."""


def federation(labels: Labels, held: int = 6, seed: int = 0) -> Federation:
    """Return a federation with these training labels; all clients are tested on all classes."""
    rng = np.random.default_rng(seed)
    sizes = np.array([len(own) for own in labels])
    y = np.concatenate([np.array([*own], np.int64) for own in labels] + [np.arange(held) % CLASSES])
    x = torch.tensor(rng.integers(0, 256, (len(y), *SHAPE)), dtype=torch.uint8)
    tested = torch.arange(len(y) - held, len(y)).repeat(len(labels))
    look = torch.full((math.prod(SHAPE),), 1 / 128), torch.full((math.prod(SHAPE),), -1.0)
    whole = x, torch.tensor(y)
    every = np.full(len(labels), held)
    return Federation(
        FunctionalModel(MLP((5,)), SHAPE, CLASSES),
        CLASSES,
        torch.device("cpu"),
        ClientData(*whole, torch.arange(len(y) - held), sizes, *look, {}),
        ClientData(*whole, tested, every, *look),
        ClientData(*whole, tested, every.copy(), *look),
        np.arange(len(labels)),
    )


def played(algorithm: Any, fed: Federation, rounds: int = 2) -> None:
    """Play rounds with all clients, and evaluate; assert that all numbers are finite."""
    first = None
    if isinstance(algorithm, LaterStage | Mixture):
        first = _rounds(getattr(algorithm, "of", FedAvg()), fed, None, rounds)
    state = algorithm.assign_clusters(fed, _rounds(algorithm, fed, first, rounds))
    for part in (fed.validation, fed.test):
        scores = evaluate(fed, algorithm, state, part)
        assert np.isfinite(scores.nll).all(), "a likelihood is not finite"
        assert ((scores.accuracy >= 0) & (scores.accuracy <= 1)).all(), "an accuracy is none"
    assert 0 <= evaluate_global(fed, algorithm, state) <= 1, "the global accuracy is none"
    everywhere = evaluate_everywhere(fed, algorithm, state)
    assert ((everywhere >= 0) & (everywhere <= 1)).all(), "an accuracy everywhere is none"


def _rounds(algorithm: Any, fed: Federation, first: Any, rounds: int) -> Any:
    state = algorithm.init(fed, 0, first)
    for t in range(rounds):
        state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=1.0)
        some = torch.as_tensor(fed.sizes[report.clients] > 0)  # there is no loss of no example
        assert torch.equal(report.losses.isfinite(), some), "a loss is not finite"
        for name, leaf in {**state.flat(), **report.messages}.items():
            assert leaf.isfinite().all(), f"{name} is not finite"
        for name, values in algorithm.log_metrics(fed, state).items():
            assert np.ndim(values) == 0 or len(values), f"{name} is empty"
    return state


def outcome(algorithm: Any, fed: Federation) -> str:
    """Return the outcome of an algorithm; "!" marks a broken promise."""
    try:
        played(algorithm, fed)
    except AssertionError as error:
        return f"!{error}"
    except Exception as error:
        return judged(error)
    return "two rounds, all numbers finite"


def measure(plan: Plan) -> list[Row]:
    """Run every algorithm on every odd federation."""
    rows = []
    for name, labels in ODD.items():
        row = Row(f"odd clients: {name}")
        for kind, algorithm in algorithms.every().items():
            row.note(outcome(algorithm, federation(labels)), kind)
        rows.append(row)
    return rows
