"""One communication round: select, start, train, send back, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import costs
from fedlib.engine.batches import Plan, make_plan
from fedlib.engine.evaluate import accuracy_of, nll_of
from fedlib.engine.protocol import Algorithm, State, Update, playing
from fedlib.engine.seen import UNSEEN, Seen, look
from fedlib.engine.train import Cohort, Phase, TrainingDiverged, train
from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.partition import whole_part
from fedlib.randomness import generator

SPLITS = ("validation", "test")


@dataclass(eq=False)
class Report:
    """A round of S clients, each ``[S, ...]``: rows, losses, messages, weights and bytes.

    ``adapted`` are the accuracies after the local epochs, before anything is sent, by split.
    """

    rows: np.ndarray
    losses: Tensor
    messages: Params
    weights: dict[str, Tensor]
    down: Tensor
    up: Tensor
    adapted: dict[str, Tensor]


def select(fed: Federation, cohort: int | float, seed: int, round: int) -> np.ndarray:
    """Return the rows of the clients that take part, drawn without replacement by id.

    ``cohort`` is a number of clients, or a fraction of the federation's members as a float.
    """
    rows = np.argsort(fed.ids, kind="stable")
    if fed.members is not None:
        rows = rows[np.isin(rows, fed.members)]
    size = cohort_size(cohort, len(rows))
    return rows[generator(seed, "cohort", round).choice(len(rows), size, replace=False)]


def cohort_size(cohort: int | float, clients: int) -> int:
    """Return the number of clients per round; ValueError if it is not between 1 and ``clients``.

    Of a fraction C it is ceil(C K), as 003 has it (algorithm 1, line 3): 6 of 182 for 0.03.
    """
    size: float = cohort
    if isinstance(cohort, float) and math.isfinite(cohort):
        # Rounding leaves products just beside what is meant: -whole_part(-n) is that ceiling.
        size = max(1, -whole_part(-cohort * clients))
    if not 1 <= size <= clients or cohort <= 0:
        raise ValueError(f"a cohort of {cohort} does not fit {clients} clients; use 1 to {clients}")
    return int(size)


def play_round(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    *,
    round: int,
    seed: int,
    cohort: int | float,
    chunk: int | None = None,
    score: bool = False,
) -> tuple[State, Report]:
    """Play one round and return the next state and a report.

    ``chunk`` clients share one program (default: ``costs.chunk_of``); the result does not depend on
    it up to float rounding. Local leaves of ``state`` are updated in place: a round costs what its
    cohort costs, not what the population costs. ``score`` also tests every client of the cohort
    with the leaves that it has trained, on its validation and test examples (000, App. G).
    An algorithm that federates sees nothing of what opted out; RuntimeError for one that says it
    does not and has messages.
    """
    fed = playing(algorithm, fed)
    rows = select(fed, cohort, seed, round)
    phases = algorithm.phases()
    plans = _plans(phases, fed, rows, round, seed)
    where = torch.as_tensor(rows, device=fed.device)
    state = algorithm.before_round(fed, state, where, round=round, seed=seed)
    alike = algorithm.alike(fed, state, where).cpu().numpy()
    messages: Params = {}
    losses = torch.zeros(len(rows), device=fed.device)
    adapted = {split: torch.zeros(len(rows)).double() for split in SPLITS if score}
    ends = plans[0].ends if plans else np.zeros(len(rows), dtype=np.int64)
    usual = costs.chunk_of(fed, chunk, costs.numbers(state))
    most = costs.side_by_side(fed, chunk, usual, state, phases)
    for group in costs.groups(alike, ends, most):
        steps = [(phase, p.rows(group)) for phase, p in zip(phases, plans, strict=True)]
        try:
            begun = _begin_group(algorithm, fed, state, rows[group])
            trained = _train_group(algorithm, state, begun, steps, chunk, usual)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {round}: {error}", error.clients) from error
        losses[torch.as_tensor(group, device=fed.device)] = trained.loss.to(losses)
        for start, end in costs.cuts(len(group), usual):
            some = group[start:end]
            message, scores = _end_group(algorithm, state, trained.part(start, end), score)
            place = torch.as_tensor(some, device=fed.device)
            for split, accuracy in scores.items():
                adapted[split][some] = accuracy.double().cpu()
            for name, rows_of in message.items():
                if name not in messages:
                    messages[name] = rows_of.new_empty(len(rows), *rows_of.shape[1:])
                messages[name].index_copy_(0, place, rows_of)
    if messages and not algorithm.federates:
        raise RuntimeError(f"{type(algorithm).__name__} does not federate, yet sends {[*messages]}")
    with torch.no_grad():
        weights = algorithm.weights(fed, state, where, messages)
        down, up = algorithm.communication_bytes(state, where, messages)
        after = algorithm.aggregate(fed, state, where, messages)
    return after, Report(rows, losses, messages, weights, down, up, adapted)


def _plans(
    phases: Sequence[Phase], fed: Federation, rows: np.ndarray, round: int, seed: int
) -> list[Plan]:
    return [
        make_plan(
            fed.ids[rows],
            fed.train.sizes[rows],
            batch_size=phase.batch_size,
            epochs=phase.epochs,
            seed=seed,
            where=(round, k),
        )
        for k, phase in enumerate(phases)
    ]


@dataclass(eq=False)
class _Trained:
    """Some clients after their local training, with their leaves ``before`` it and their losses."""

    cohort: Cohort
    before: Params
    loss: Tensor

    def part(self, start: int, end: int) -> _Trained:
        """Return some of the clients."""
        before = {n: t[start:end] for n, t in self.before.items()}
        return _Trained(self.cohort.part(start, end), before, self.loss[start:end])


def _begin_group(algorithm: Algorithm, fed: Federation, state: State, rows: np.ndarray) -> Cohort:
    """Return some clients with what they receive, keep and know."""
    where = torch.as_tensor(rows, device=fed.device)
    leaves, context = (
        algorithm.start(fed, state, where),
        algorithm.client_context(fed, state, where),
    )
    return Cohort(fed, rows, leaves, context, algorithm.broadcast(fed, state), state.local)


def _train_group(
    algorithm: Algorithm,
    state: State,
    group: Cohort,
    steps: list[tuple[Phase, Plan]],
    chunk: int | None,
    usual: int,
) -> _Trained:
    """Play all phases of some clients, each phase with as many of them together as suits it."""
    fed, clients, before = group.fed, len(group.rows), group.leaves
    loss = torch.zeros(clients)
    for phase, plan in steps:
        moving = phase.moves(group.leaves, state.local)
        if not moving:
            loss = torch.zeros(clients)
            continue
        group = replace(group, seen=_seen(algorithm, group, phase, moving))
        method = partial(_one_client, getattr(algorithm, phase.loss), fed.net)
        watched = _watched(algorithm, fed, phase, method)
        trains = {n: group.leaves[n] for n in moving}
        size = costs.together(fed, chunk, usual, trains, group.seen.instead)
        ends = []
        for start, end in costs.cuts(clients, size):
            some = plan.rows(np.arange(start, end)) if end - start < clients else plan
            ends.append(
                train(group.part(start, end), phase, some, method, watched, (algorithm, phase))
            )
        trained = {n: torch.cat([leaves[n] for leaves, _ in ends]) for n in moving}
        after = trained if len(ends) > 1 else ends[0][0]
        group = replace(group, leaves={**group.leaves, **after}, seen=UNSEEN)
        loss = torch.cat([part for _, part in ends])
    return _Trained(group, before, loss)


def _seen(algorithm: Algorithm, group: Cohort, phase: Phase, moving: Collection[str]) -> Seen:
    """Return what the leaves that a phase leaves alone say of some clients' examples."""
    known = partial(_one_client, algorithm.known, group.fed.net)
    frozen = {n: t for n, t in group.leaves.items() if n not in moving}
    watched = phase.stop is not None and phase.watch == "loss"
    parts = frozen, group.context, group.common
    return look(group.fed, known, group.where, *parts, validation=watched)


def _end_group(
    algorithm: Algorithm, state: State, trained: _Trained, score: bool
) -> tuple[Params, dict[str, Tensor]]:
    """Return what some clients send, and their scores if asked; they keep what is local."""
    group = trained.cohort
    fed, where, context, common = group.fed, group.where, group.context, group.common
    with torch.no_grad():
        update = vmap_clients(
            partial(_one_ended, algorithm.client_update, fed.net), len(where), common=1
        )
        own, message = update(trained.before, group.leaves, context, common)
        after = {**group.leaves, **own}
        message |= algorithm.client_statistics(fed, where, after, context)
        for name, leaf in state.local.items():
            leaf[where] = after[name]
        scores = _scores(algorithm, replace(group, leaves=after)) if score else {}
    return message, scores


def _scores(algorithm: Algorithm, group: Cohort) -> dict[str, Tensor]:
    """Return the accuracies of some clients' own leaves on their held-out examples, by split."""
    fed, where = group.fed, group.where
    test = vmap_clients(accuracy_of(algorithm, fed), len(where), common=1)
    held = {"validation": fed.validation.whole(where), "test": fed.test.whole(where)}
    return {s: test(group.leaves, group.context, held[s], group.common) for s in SPLITS}


def _watched(
    algorithm: Algorithm, fed: Federation, phase: Phase, loss: Callable[..., Tensor]
) -> Callable[..., Tensor] | None:
    if phase.stop is None:
        return None
    return loss if phase.watch == "loss" else nll_of(algorithm, fed)


def _one_client(
    method: Callable[..., Any],
    net: Net,
    params: Params,
    ctx: Params,
    batch: Params,
    common: Params,
) -> Any:
    return method(net, params, {**ctx, **common}, batch)


def _one_ended(
    method: Callable[..., Update],
    net: Net,
    before: Params,
    after: Params,
    ctx: Params,
    common: Params,
) -> Update:
    return method(net, before, after, {**ctx, **common})
