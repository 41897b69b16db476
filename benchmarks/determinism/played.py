"""Deviations of rounds in memory: clients alone, evaluation in parts, and growth over rounds."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.determinism.deviation import bits, distance
from benchmarks.determinism.subjects import SEED, Subject
from benchmarks.determinism.trained import EVERYBODY, trained
from fedlib.engine import Report, Selection, State, evaluate, play_round
from fedlib.engine.protocol import train_view
from fedlib.federation import ClientData, Federation
from fedlib.values import value

GROWN = (1, 5, 20)


class _Double(ClientData):
    """A table with examples in double precision."""

    def inputs(self, examples: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the inputs of ``ClientData``, with images in double precision."""
        x = ClientData.inputs(self, examples, noise)
        return x.double() if x.is_floating_point() else x


@value
class Only(Selection):
    """A cohort of one client; the others do not opt out, so that no mean leaves them out."""

    row: int = 0

    def pick(
        self, fed: Federation, clients: np.ndarray, size: int, round: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the client."""
        return np.array([self.row])


@dataclass(frozen=True)
class InMemory:
    """Deviations of rounds of one subject.

    Attributes:
        alone: whether a client's message and tensors have the same bits when it trains alone, if
            the cohort trains one by one.
        shared_alone: the same, if the cohort trains in shared programs.
        shared_alone_relative: the largest relative distance in that case.
        nll: the largest relative difference of a client's negative log-likelihood when it is
            evaluated in parts.
        accuracy: the largest difference of its accuracy.
    """

    alone: bool
    shared_alone: bool
    shared_alone_relative: float
    nll: float
    accuracy: float


def in_memory(root: Path, subject: Subject) -> InMemory:
    """Continue from the reference's last state by a round, in several ways."""
    experiment = subject.experiment
    algorithm = experiment.algorithm
    fed = train_view(algorithm, experiment.task.build(SEED, "cpu"))
    state, _ = trained(root, "reference", experiment)

    def go(cohort: int | Only, chunk: int) -> tuple[State, Report]:
        begun = copy.deepcopy(state)
        where = {"round": experiment.rounds, "seed": SEED, "cohort": cohort, "chunk": chunk}
        return play_round(algorithm, fed, begun, **where)

    plain, together = go(fed.num_clients, 1), go(fed.num_clients, EVERYBODY)
    same, close = True, list[tuple[bool, float]]()
    for row in range(fed.num_clients):
        mine = _of(go(Only(1, row=row), 1), row)
        same &= bits(mine) == bits(_of(plain, row))
        shared = _of(together, row)
        close.append((bits(mine) == bits(shared), distance(mine, shared)[1]))
    nll, accuracy = _in_parts(subject, fed, state)
    return InMemory(same, all(c[0] for c in close), max(c[1] for c in close), nll, accuracy)


def _of(played: tuple[State, Report], row: int) -> dict[str, Tensor]:
    """Return the result of one client's training: its message, its loss and its own tensors."""
    state, report = played
    at = report.clients.tolist().index(row)
    said = {f"message:{n}": t[at] for n, t in report.messages.items()}
    own = {f"local:{n}": t[row] for n, t in state.client_params.items()}
    return {"loss": report.losses[at], **said, **own}


def _in_parts(subject: Subject, fed: Federation, state: State) -> tuple[float, float]:
    """Return the largest differences by client when few examples are evaluated at a time."""
    algorithm = subject.experiment.algorithm
    whole = evaluate(fed, algorithm, state, fed.test)
    with mock.patch.multiple("fedlib.engine.width", BLOCK=7, BUDGET=1, READ=1):
        parts = evaluate(fed, algorithm, state, fed.test)
    apart = np.abs(whole.nll - parts.nll) / np.abs(whole.nll)
    return float(apart.max()), float(np.abs(whole.accuracy - parts.accuracy).max())


@dataclass(frozen=True)
class Growth:
    """Relative distances after ``GROWN`` rounds.

    Attributes:
        chunk: to another chunk.
        double: to double precision.
        accuracy: the difference of the mean test accuracy between the chunks at the end.
    """

    chunk: tuple[float, ...]
    double: tuple[float, ...]
    accuracy: float


def growth(subject: Subject) -> Growth:
    """Play rounds one client at a time, all at once, and one at a time in double precision."""
    one = [*_states(subject, 1, False)]
    together = [*_states(subject, EVERYBODY, False)]
    double = [*_states(subject, 1, True)]
    fed = subject.experiment.task.build(SEED, "cpu")
    algorithm = subject.experiment.algorithm
    scores = [
        evaluate(fed, algorithm, State.from_flat(states[-1]), fed.test).accuracy.mean()
        for states in (one, together)
    ]
    apart = [
        tuple(distance(a, b)[1] for a, b in zip(one, other, strict=True))
        for other in (together, double)
    ]
    return Growth(*apart, float(abs(scores[0] - scores[1])))


def _states(subject: Subject, chunk: int, double: bool) -> Iterator[dict[str, Tensor]]:
    """Yield the state after each of ``GROWN`` rounds."""
    experiment = subject.experiment
    algorithm = experiment.algorithm
    fed = train_view(algorithm, experiment.task.build(SEED, "cpu"))
    state = algorithm.init(fed, SEED)
    with _precision(double):
        if double:
            state, fed = _doubled(state), _in_double(fed)
        for t in range(max(GROWN)):
            state, _ = play_round(
                algorithm, fed, state, round=t, seed=SEED, cohort=experiment.cohort, chunk=chunk
            )
            if t + 1 in GROWN:
                yield copy.deepcopy(state.flat())


def _in_double(fed: Federation) -> Federation:
    tables: dict[str, Any] = {n: _Double(**vars(getattr(fed, n))) for n in ("train", "validation")}
    return replace(fed, **tables)


def _doubled(state: State) -> State:
    flat = state.flat().items()
    return State.from_flat({n: t.double() if t.is_floating_point() else t for n, t in flat})


@contextmanager
def _precision(double: bool) -> Iterator[None]:
    """Make new tensors in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
