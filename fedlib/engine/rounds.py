"""One communication round: select, start, train, send back, aggregate."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import costs
from fedlib.engine.batches import make_plan
from fedlib.engine.evaluate import accuracy
from fedlib.engine.program import one_client, vmap_clients
from fedlib.engine.protocol import SHAPES, Algorithm, State, Update, tensors, train_view
from fedlib.engine.selection import Selection
from fedlib.engine.train import Cohort, TrainingDiverged, in_parts, train_phase
from fedlib.federation import Federation
from fedlib.models import Params
from fedlib.parallel import map_chunks
from fedlib.values import short_repr

SPLITS = ("validation", "test")


@dataclass(eq=False)
class Report:
    """A round of S clients, each ``[S, ...]``: rows, losses, messages, weights and bytes.

    The loss of a client without training examples is nan. ``adapted`` are the accuracies after the
    local epochs, before anything is sent, by split.
    """

    clients: np.ndarray
    losses: Tensor
    messages: Params
    weights: dict[str, Tensor]
    download: Tensor
    upload: Tensor
    adapted: dict[str, Tensor]


class Sent(NamedTuple):
    """What some clients end a round with, ``[clients, ...]`` each.

    The server is sent their ``messages``, ``kept`` are the local leaves, which stay with them, and
    ``metrics`` is what was measured: the ``loss``, and accuracies as in ``Report.adapted``.
    """

    messages: Params
    kept: Params
    metrics: Params


def select(fed: Federation, cohort: int | float | Selection, seed: int, round: int) -> np.ndarray:
    """Return the rows of the clients that take part, drawn without replacement by id.

    ``cohort`` is a number of clients, a fraction of the federation's members as a float, or a
    ``Selection``.
    """
    how = cohort if isinstance(cohort, Selection) else Selection(cohort)
    return how.choose(fed, seed, round)


def play_round(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    *,
    round: int,
    seed: int,
    cohort: int | float | Selection,
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
    fed, state = train_view(algorithm, fed), replace(state, round=round, seed=seed)
    clients = select(fed, cohort, seed, round)
    where = torch.as_tensor(clients, device=fed.device)
    state = algorithm.choose(fed, state, where)
    try:
        messages, metrics = _train_cohort(algorithm, fed, state, clients, chunk, score)
    except TrainingDiverged as error:
        raise TrainingDiverged(f"round {round}: {error}", error.clients) from error
    except Exception as error:
        way = "client by client, without vmap: run(..., debug=True)"
        error.add_note(f"in round {round} of {type(algorithm).__name__}; {way}")
        raise
    if messages and not algorithm.communicates:
        raise RuntimeError(f"{type(algorithm).__name__} does not federate, yet sends {[*messages]}")
    with torch.no_grad():
        asked = algorithm.weights(fed, state, where, messages)
        weights = tensors(algorithm, "weights", asked)
        down, up = algorithm.communication_bytes(state, where, messages)
        after = algorithm.aggregate(fed, state, where, messages)
    if not isinstance(after, State):
        what = f"must return the next State, as replace(state, shared=...), got {short_repr(after)}"
        raise TypeError(f"{type(algorithm).__name__}.aggregate {what}")
    some = torch.as_tensor(fed.train.sizes[clients] > 0, device=fed.device)
    losses = torch.where(some, metrics.pop("loss"), torch.nan)
    return after, Report(clients, losses, messages, weights, down, up, metrics)


def _train_cohort(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    clients: np.ndarray,
    chunk: Any,
    score: bool,
) -> tuple[Params, Params]:
    """Play the clients of a round; return their messages and what was measured, ``[S, ...]``.

    Local leaves of ``state`` are updated in place.
    """
    where = torch.as_tensor(clients, device=fed.device)
    shapes = algorithm.client_constants(fed, state, where).get(SHAPES, torch.zeros_like(where))
    usual = costs.chunk_of(fed, chunk, costs.numbers(state))
    sizes, phases = fed.train.sizes[clients], algorithm.phases()
    most = costs.cohort_width(fed, chunk, usual, state, phases)
    groups = [*costs.groups(shapes.cpu().numpy(), sizes, phases, most)]
    full = int(sizes[~costs.oversized(sizes)].max(initial=1))  # what a full batch has room for
    now = {n: torch.tensor(getattr(state, n), device=fed.device) for n in ("round", "seed")}

    def play(group: np.ndarray) -> Sent:
        """Return what some clients end with, who see the broadcast and their own rows only."""
        mine, ids, held = where[torch.as_tensor(group)], fed.ids[clients[group]], sizes[group]
        params = tensors(
            algorithm, "client_params", algorithm.client_params(fed, state, mine), len(mine)
        )
        found = algorithm.client_constants(fed, state, mine)
        context = tensors(algorithm, "client_constants", found, len(mine))
        common, loss = {**algorithm.round_constants(fed, state), **now}, torch.zeros(len(mine))
        received = trained = Cohort(fed, mine, params, context, common, loss.to(fed.device))
        for k, phase in enumerate(phases):
            size = phase.batch_size or int(held.max(initial=full))
            drawn = state.seed, state.round, k
            plan = make_plan(ids, held, size, phase.epochs, drawn, phase.steps)
            trained = train_phase(
                algorithm, trained, phase, plan, state.client_params, chunk, usual
            )

        def end(some: slice) -> Sent:
            return _end(
                algorithm, received.part(some), trained.part(some), state.client_params, score
            )

        return in_parts(end, len(mine), usual, "ends")

    # Clients that play their phases side by side are not dealt out: each of their phases is.
    side_by_side = most > usual
    played = enumerate(map(play, groups)) if side_by_side else map_chunks(play, groups, "clients")
    messages, metrics = dict[str, Tensor](), dict[str, Tensor]()
    for i, sent in played:
        place = torch.as_tensor(groups[i], device=fed.device)
        for name, param in state.client_params.items():
            param[where[place]] = sent.kept[name]
        _put(messages, sent.messages, place, len(where))
        _put(metrics, sent.metrics, place, len(where))
    return messages, metrics


def _end(
    algorithm: Algorithm, cohort: Cohort, trained: Cohort, local: Collection[str], score: bool
) -> Sent:
    """Return what clients that share a program end with."""
    fed, clients, context, common = cohort.fed, cohort.clients, cohort.context, cohort.common

    def end(before: Params, after: Params, context: Params) -> Update:
        update = algorithm.client_update(fed.net, before, after, {**context, **common})
        return _pair(algorithm, "client_update", update)

    with torch.no_grad():
        ends = vmap_clients(end, len(clients))(cohort.params, trained.params, context)
        last = algorithm.postprocess(cohort, trained.params, ends)
        own, message = _pair(algorithm, "postprocess", last)
        _require_kept(algorithm, own, {n: cohort.params[n] for n in local})
        after = {**trained.params, **own}
        test = vmap_clients(one_client(partial(accuracy, algorithm), fed.net, common), len(clients))
        scores = {}
        for name, table in zip(SPLITS, (fed.validation, fed.test), strict=True):
            if score and table.sizes[clients.cpu().numpy()].any():
                scores[name] = test(after, context, table.all_examples(clients)).double().cpu()
            elif score:  # no network is asked about no example
                scores[name] = torch.full((len(clients),), torch.nan).double()
    return Sent(message, {n: after[n] for n in local}, {"loss": trained.loss, **scores})


def _pair(algorithm: Algorithm, hook: str, update: Any) -> Update:
    """Return what clients keep and send; TypeError unless that is what a hook has returned."""
    if not isinstance(update, tuple | list) or len(update) != 2:
        need = "must return a pair: what a client keeps, and what it sends"
        raise TypeError(f"{type(algorithm).__name__}.{hook} {need}, got {short_repr(update)}")
    own, message = (tensors(algorithm, hook, part) for part in update)
    return own, message


def _require_kept(algorithm: Algorithm, own: Params, local: Params) -> None:
    """ValueError for what no client keeps, which would be lost, or keeps in another form."""
    for name, t in own.items():
        where = f"{type(algorithm).__name__}.client_update: what a client keeps"
        if name not in local:
            there = ", ".join(local) or "none"
            raise ValueError(f"{where}, {name!r}, is none of its local leaves; these are {there}")
        form, wanted = ((param.dtype, [*param.shape[1:]]) for param in (t, local[name]))
        if form != wanted:
            is_, was = (f"{kind} {shape}" for kind, shape in (form, wanted))
            raise ValueError(f"{where}, {name!r}, is {is_}, and its local leaf {was}")


def _put(columns: Params, found: Params, place: Tensor, length: int) -> None:
    """Write rows of some clients into columns ``[length, ...]``."""
    for name, clients in found.items():
        if name not in columns:
            columns[name] = clients.new_empty(length, *clients.shape[1:])
        column = columns[name]
        column.index_copy_(0, place.to(column.device), clients.to(column))
