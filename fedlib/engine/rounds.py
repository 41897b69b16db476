"""One communication round: select, start, train, send back, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.engine.batches import Plan, make_plan
from fedlib.engine.evaluate import accuracy_of, nll_of
from fedlib.engine.protocol import Algorithm, State, Update, playing
from fedlib.engine.seen import Seen, look
from fedlib.engine.train import Phase, TrainingDiverged, train
from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.partition.chance import whole_part
from fedlib.randomness import generator

# What a CPU core keeps close: a cohort whose weights exceed it waits for memory at every step.
CACHE_BYTES = 2**22
READERS = 32  # clients whose recurrent nets read their texts together
WAITING_BYTES = 2**26  # weights of clients that wait for their next phase
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

    ``chunk`` clients share one program (default: ``chunk_of``); the result does not depend on
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
    usual = chunk_of(fed, chunk, numbers(state))
    most = _most_together(fed, chunk, usual, state, phases)
    for group in _groups(alike, ends, most):
        steps = [(phase, p.rows(group)) for phase, p in zip(phases, plans, strict=True)]
        try:
            trained = _train_group(algorithm, fed, state, rows[group], steps, chunk, usual)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {round}: {error}", error.clients) from error
        losses[torch.as_tensor(group, device=fed.device)] = trained.loss.to(losses)
        for start, end in _cuts(len(group), usual):
            some = group[start:end]
            message, scores = _end_group(algorithm, fed, state, trained.rows(start, end), score)
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


def chunk_of(fed: Federation, chunk: int | None, numbers: int = 0) -> int:
    """Return how many clients share one program: by default what is fastest on the device.

    All of the cohort on a GPU; on a CPU as many as its cache holds, convolutions one at a time, and
    recurrent nets ``READERS`` at a time, whose many small steps cost more than their weights.
    ``numbers`` is how many numbers a client's leaves have, by default the net's.
    """
    if chunk is not None:
        if chunk < 1:
            raise ValueError(f"chunk must be >= 1 or None, got {chunk}")
        return chunk
    if fed.device.type != "cpu":
        return fed.clients
    if fed.net.alone(fed.device):
        return 1
    if fed.net.is_recurrent:
        return READERS
    return max(1, CACHE_BYTES // (4 * (numbers or fed.net.parameters())))


def _together(
    fed: Federation,
    chunk: int | None,
    usual: int,
    leaves: Params,
    moving: Sequence[str],
    seen: Seen,
) -> int:
    """Return how many clients share the program of one phase: the one place that decides.

    Where vectors take the place of the examples no convolution is left, however many the model has:
    then as many as a CPU's cache holds of what moves.
    """
    if chunk is not None or fed.device.type != "cpu" or not seen.instead:
        return usual
    size = sum(leaves[n][0].numel() for n in moving)
    return max(usual, min(READERS, CACHE_BYTES // (4 * max(size, 1))))


def _most_together(
    fed: Federation, chunk: int | None, usual: int, state: State, phases: Sequence[Phase]
) -> int:
    """Return how many clients play their phases side by side, a multiple of the usual chunk.

    More than that only where some phase trains no convolution, and as long as the weights of all
    are few: they wait in memory for the next phase.
    """
    if chunk is not None or fed.device.type != "cpu":
        return usual
    shapes = {n: t.ndim for n, t in state.shared.items()}
    shapes |= {n: t.ndim - 1 for n, t in state.local.items()}
    moving = [phase.moves(shapes, state.local) for phase in phases]
    if not any(names and max(shapes[n] for n in names) <= 2 for names in moving):
        return usual
    most = min(READERS, WAITING_BYTES // (4 * max(numbers(state), 1)))
    return usual * max(1, most // usual)


def numbers(state: State) -> int:
    """Return how many numbers one client's leaves have: what ``chunk_of`` asks for."""
    mine = sum(t[0].numel() for t in state.local.values())
    return mine + sum(t.numel() for t in state.shared.values())


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
            drop_last=phase.drop_last,
        )
        for k, phase in enumerate(phases)
    ]


@dataclass(eq=False)
class _Trained:
    """Some clients after their local training: rows, leaves before and after, context, losses."""

    where: Tensor
    before: Params
    after: Params
    context: Params
    common: Params
    loss: Tensor

    def rows(self, start: int, end: int) -> _Trained:
        """Return some of the clients."""
        before, after, context = (
            _cut(part, start, end) for part in (self.before, self.after, self.context)
        )
        where, loss = self.where[start:end], self.loss[start:end]
        return _Trained(where, before, after, context, self.common, loss)


def _train_group(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    rows: np.ndarray,
    steps: list[tuple[Phase, Plan]],
    chunk: int | None,
    usual: int,
) -> _Trained:
    """Play all phases of some clients, each phase with as many of them together as suits it."""
    where = torch.as_tensor(rows, device=fed.device)
    before = algorithm.start(fed, state, where)
    context, common = algorithm.client_context(fed, state, where), algorithm.broadcast(fed, state)
    after, loss = before, torch.zeros(len(rows))
    for phase, plan in steps:
        moving = phase.moves(after, state.local)
        if not moving:
            loss = torch.zeros(len(rows))
            continue
        known = partial(_one_client, algorithm.known, fed.net)
        frozen = {n: t for n, t in after.items() if n not in moving}
        watched = phase.stop is not None and phase.watch == "loss"
        seen = look(fed, known, where, frozen, context, common, validation=watched)
        method = partial(_one_client, getattr(algorithm, phase.loss), fed.net)
        ends: list[tuple[Params, Tensor]] = []
        for start, end in _cuts(len(rows), _together(fed, chunk, usual, after, moving, seen)):
            some = np.arange(start, end)
            ends.append(
                train(
                    fed,
                    rows[some],
                    _cut(after, start, end),
                    _cut(context, start, end),
                    common,
                    phase=phase,
                    plan=plan.rows(some) if len(some) < len(rows) else plan,
                    loss=method,
                    validation_loss=_watched(algorithm, fed, phase, method),
                    key=(algorithm, phase),
                    local=state.local,
                    seen=seen.rows(start, end),
                )
            )
        trained = {n: torch.cat([leaves[n] for leaves, _ in ends]) for n in moving}
        after = {**after, **(trained if len(ends) > 1 else ends[0][0])}
        loss = torch.cat([part for _, part in ends])
    return _Trained(where, before, after, context, common, loss)


def _end_group(
    algorithm: Algorithm, fed: Federation, state: State, trained: _Trained, score: bool
) -> tuple[Params, dict[str, Tensor]]:
    """Return what some clients send, and their scores if asked; they keep what is local."""
    where, before, after = trained.where, trained.before, trained.after
    context, common = trained.context, trained.common
    with torch.no_grad():
        update = partial(_one_ended, algorithm.client_update, fed.net)
        own, message = vmap_clients(update, len(where), common=1)(before, after, context, common)
        after = {**after, **own}
        message |= algorithm.client_statistics(fed, where, after, context)
        for name, leaf in state.local.items():
            leaf[where] = after[name]
        scores = _scores(algorithm, fed, where, after, context, common) if score else {}
    return message, scores


def _scores(
    algorithm: Algorithm, fed: Federation, rows: Tensor, after: Params, context: Params,
    common: Params,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the accuracies of some clients' own leaves on their held-out examples, by split."""
    test = vmap_clients(accuracy_of(algorithm, fed), len(rows), common=1)
    tables = {"validation": fed.validation, "test": fed.test}
    return {split: test(after, context, tables[split].whole(rows), common) for split in SPLITS}


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


def _groups(alike: np.ndarray, ends: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield places of the cohort that share a program: alike, those with most steps first."""
    for kind in np.unique(alike):
        same = np.flatnonzero(alike == kind)
        order = same[np.argsort(-ends[same], kind="stable")]
        yield from np.split(order, range(size, len(order), size))


def _cuts(length: int, size: int) -> list[tuple[int, int]]:
    """Return the (start, end) of consecutive parts of at most ``size``."""
    return [(i, min(i + size, length)) for i in range(0, length, size)]


def _cut(leaves: Params, start: int, end: int) -> Params:
    return {n: t[start:end] for n, t in leaves.items()}
