"""One communication round: select, start, train, send back, aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedlib.engine.batches import Plan, make_plan
from fedlib.engine.evaluate import accuracy_of, nll_of
from fedlib.engine.lift import lift
from fedlib.engine.protocol import Algorithm, State, playing
from fedlib.engine.train import Phase, TrainingDiverged, train
from fedlib.federation import Federation
from fedlib.models import Leaves, Net
from fedlib.partition.chance import whole_part
from fedlib.randomness import generator

# What a CPU core keeps close: a cohort whose weights exceed it waits for memory at every step.
CACHE_BYTES = 2**22
READERS = 32  # clients whose recurrent nets read their texts together
SPLITS = ("validation", "test")


@dataclass(eq=False)
class Report:
    """A round of S clients, each ``[S, ...]``: rows, losses, messages, weights and bytes.

    ``adapted`` are the accuracies after the local epochs, before anything is sent, by split.
    """

    rows: np.ndarray
    losses: Tensor
    messages: Leaves
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
    fed = algorithm.view(fed, state)
    plans = _plans(phases, fed, rows, round, seed)
    where = torch.as_tensor(rows, device=fed.device)
    state = algorithm.prepare(fed, state, where, round=round, seed=seed)
    alike = algorithm.alike(fed, state, where).cpu().numpy()
    messages: Leaves = {}
    losses = torch.zeros(len(rows), device=fed.device)
    adapted = {split: torch.zeros(len(rows)).double() for split in SPLITS if score}
    ends = plans[0].ends if plans else np.zeros(len(rows), dtype=np.int64)
    for group in _groups(alike, ends, chunk_of(fed, chunk, numbers(state))):
        try:
            steps = [(phase, p.rows(group)) for phase, p in zip(phases, plans, strict=True)]
            message, loss, scores = _train_group(algorithm, fed, state, rows[group], steps, score)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {round}: {error}", error.clients) from error
        place = torch.as_tensor(group, device=fed.device)
        losses[place] = loss.to(losses)
        for split, accuracy in scores.items():
            adapted[split][group] = accuracy.double().cpu()
        for name, rows_of in message.items():
            if name not in messages:
                messages[name] = rows_of.new_empty(len(rows), *rows_of.shape[1:])
            messages[name].index_copy_(0, place, rows_of)
    if messages and not algorithm.federates:
        raise RuntimeError(f"{type(algorithm).__name__} does not federate, yet sends {[*messages]}")
    with torch.no_grad():
        weights = algorithm.weights(fed, state, where, messages)
        down, up = algorithm.sent(state, where, messages)
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


def _train_group(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    rows: np.ndarray,
    steps: list[tuple[Phase, Plan]],
    score: bool,
) -> tuple[Leaves, Tensor, dict[str, Tensor]]:
    where = torch.as_tensor(rows, device=fed.device)
    before = algorithm.start(fed, state, where)
    context, common = algorithm.context(fed, state, where), algorithm.common(fed, state)
    after, loss = before, torch.zeros(len(rows))
    for phase, plan in steps:
        method = partial(_one_client, getattr(algorithm, phase.loss), fed.net)
        after, loss = train(
            fed,
            rows,
            after,
            context,
            common,
            phase=phase,
            plan=plan,
            loss=method,
            validation_loss=_watched(algorithm, fed, phase, method),
            key=(algorithm, phase),
            local=state.local,
        )
    with torch.no_grad():
        remember, send = (
            lift(partial(_one_ended, method, fed.net), len(rows), common=1)
            for method in (algorithm.remember, algorithm.finish)
        )
        after = {**after, **remember(before, after, context, common)}
        message = send(before, after, context, common)
        message |= algorithm.describe(fed, where, after, context)
        for name, leaf in state.local.items():
            leaf[where] = after[name]
        scores = _scores(algorithm, fed, where, after, context, common) if score else {}
    return message, loss, scores


def _scores(
    algorithm: Algorithm, fed: Federation, rows: Tensor, after: Leaves, context: Leaves,
    common: Leaves,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the accuracies of some clients' own leaves on their held-out examples, by split."""
    test = lift(accuracy_of(algorithm, fed), len(rows), common=1)
    tables = {"validation": fed.validation, "test": fed.test}
    return {split: test(after, context, tables[split].whole(rows), common) for split in SPLITS}


def _watched(
    algorithm: Algorithm, fed: Federation, phase: Phase, loss: Callable[..., Tensor]
) -> Callable[..., Tensor] | None:
    if phase.stop is None:
        return None
    return loss if phase.watch == "loss" else nll_of(algorithm, fed)


def _one_client(
    method: Callable[..., Tensor],
    net: Net,
    params: Leaves,
    ctx: Leaves,
    batch: Leaves,
    common: Leaves,
) -> Tensor:
    return method(net, params, {**ctx, **common}, batch)


def _one_ended(
    method: Callable[..., Leaves],
    net: Net,
    before: Leaves,
    after: Leaves,
    ctx: Leaves,
    common: Leaves,
) -> Leaves:
    return method(net, before, after, {**ctx, **common})


def _groups(alike: np.ndarray, ends: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield places of the cohort that share a program: alike, those with most steps first."""
    for kind in np.unique(alike):
        same = np.flatnonzero(alike == kind)
        order = same[np.argsort(-ends[same], kind="stable")]
        yield from np.split(order, range(size, len(order), size))
