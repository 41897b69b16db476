"""One communication round: choose a cohort, train its clients, aggregate their messages."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.engine.batches import make_plan
from fedlib.engine.evaluate import accuracy
from fedlib.engine.program import one_client, vmap_clients
from fedlib.engine.protocol import (
    SHAPES,
    Algorithm,
    Cohort,
    Phase,
    State,
    TrainingDiverged,
    Update,
    tensors,
    train_view,
)
from fedlib.engine.selection import Selection
from fedlib.engine.train import in_parts, train_phase
from fedlib.engine.width import Width, group_by_size, oversized
from fedlib.federation import Federation
from fedlib.models import Params
from fedlib.parallel import map_chunks
from fedlib.values import short_repr

SPLITS = ("validation", "test")


@dataclass(eq=False)
class Report:
    """What happened in a round with a cohort of S clients.

    Args:
        clients: indices of the cohort in the order drawn, int64 ``[S]``.
        losses: mean training loss of the last phase, ``[S]``; nan for a client without examples.
        messages: what the clients sent, ``[S, ...]`` by name.
        weights: the weights of the average, ``[S]`` or ``[S, K]`` by name of a parameter.
        download: bytes that each client downloaded, int64 ``[S]``.
        upload: bytes that each client uploaded, int64 ``[S]``.
        adapted: accuracies after local training and before aggregation, ``[S]`` by split; empty
            unless ``play_round`` was called with ``score``.
    """

    clients: np.ndarray
    losses: Tensor
    messages: Params
    weights: dict[str, Tensor]
    download: Tensor
    upload: Tensor
    adapted: dict[str, Tensor]


def select(fed: Federation, cohort: int | float | Selection, seed: int, round: int) -> np.ndarray:
    """Return the indices of the clients that take part in a round.

    Args:
        fed: the federation.
        cohort: a number of clients, a fraction of the participating clients as a float, or a
            ``Selection``.
        seed: the experiment's seed.
        round: the number of the round. The draw is without replacement and depends on the seed, the
            round and the ids of clients, not on their order.
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

    Args:
        algorithm: the algorithm.
        fed: the federation. If the algorithm communicates, it is trained without the examples and
            clients that opted out.
        state: the state before the round. Its ``client_params`` are updated in place, so that the
            cost of a round depends on the size of the cohort and not on that of the population.
        round: the number of the round, 0 for the first.
        seed: the experiment's seed.
        cohort: as in ``select``.
        chunk: the number of clients that share one program; results are equal up to rounding.
            Default: ``width.Width.program``.
        score: whether to evaluate every client of the cohort with its locally trained parameters,
            on its validation and test examples (Reisser et al., 2021, App. G). Default: False.

    Returns:
        The state after the round and a ``Report``.

    Raises:
        RuntimeError: if an algorithm with ``communicates = False`` has messages.
        TrainingDiverged: if a loss is not finite.
    """
    fed, state = train_view(algorithm, fed), replace(state, round=round, seed=seed)
    clients = select(fed, cohort, seed, round)
    where = torch.as_tensor(clients, device=fed.device)
    state = algorithm.choose(fed, state, where)
    try:
        messages, metrics = train_cohort(algorithm, fed, state, clients, chunk, score)
    except TrainingDiverged as error:
        raise TrainingDiverged(f"round {round}: {error}", error.clients) from error
    except Exception as error:
        way = "; to train client by client, without vmap, use run(..., debug=True)"
        error.add_note(f"in round {round} of {type(algorithm).__name__}{way * (chunk != 1)}")
        raise
    if messages and not algorithm.communicates:
        raise RuntimeError(
            f"{type(algorithm).__name__} has communicates=False, but sends {[*messages]}"
        )
    with torch.no_grad():
        asked = algorithm.weights(fed, state, where, messages)
        weights = tensors(algorithm, "weights", asked, len(where))
        down, up = algorithm.communication_bytes(state, where, messages)
        after = algorithm.aggregate(fed, state, where, messages)
    if not isinstance(after, State):
        what = f"must return a State, as replace(state, server_params=...), got {short_repr(after)}"
        raise TypeError(f"{type(algorithm).__name__}.aggregate {what}")
    some = torch.as_tensor(fed.train.sizes[clients] > 0, device=fed.device)
    losses = torch.where(some, metrics.pop("loss"), torch.nan)
    return after, Report(clients, losses, messages, weights, down, up, metrics)


def train_cohort(
    algorithm: Algorithm,
    fed: Federation,
    state: State,
    clients: np.ndarray,
    chunk: int | None = None,
    score: bool = False,
) -> tuple[Params, Params]:
    """Train the clients of a round; return their messages and metrics, ``[S, ...]`` by name.

    The ``client_params`` of ``state`` are updated in place.

    Args:
        algorithm, fed, state: as in ``play_round``, after ``choose``.
        clients: indices of the cohort, int64 ``[S]``.
        chunk, score: as in ``play_round``.
    """
    where, sizes = torch.as_tensor(clients, device=fed.device), fed.train.sizes[clients]
    known = algorithm.client_constants(fed, state, where)
    known = tensors(algorithm, "client_constants", known, len(where))
    now = {n: torch.tensor(getattr(state, n), device=fed.device) for n in ("round", "seed")}
    common = {**algorithm.round_constants(fed, state), **now}
    width, phases = Width(fed, state, chunk), algorithm.phases()
    full = int(sizes[~oversized(sizes)].max(initial=1))  # the size of a full batch

    def play(group: np.ndarray) -> tuple[Params, Params, Params]:
        """Train a group of clients, given as positions in the cohort."""
        place = torch.as_tensor(group, device=fed.device)
        mine, context = where[place], {n: t[place] for n, t in known.items()}
        params = algorithm.client_params(fed, state, mine)
        params = tensors(algorithm, "client_params", params, len(mine))
        loss = torch.zeros(len(mine), device=fed.device)
        before = after = Cohort(fed, mine, params, context, common, loss)
        for k, phase in enumerate(phases):
            size = phase.batch_size or int(sizes[group].max(initial=full))
            drawn = (state.seed, state.round, k)
            plan = make_plan(
                fed.ids[clients[group]], sizes[group], size, phase.epochs, drawn, phase.steps
            )
            after = train_phase(algorithm, after, phase, plan, width)

        def end(some: slice) -> tuple[Params, Params, Params]:
            return _end(algorithm, before.part(some), after.part(some), state.client_params, score)

        return in_parts(end, len(mine), width.program, "ends")

    groups = [*_groups(known.get(SHAPES), sizes, phases, most := width.of_group(phases))]
    # Groups that advance phase by phase are not spread over cores: their phases are.
    by_phase = most > width.program
    played = enumerate(map(play, groups)) if by_phase else map_chunks(play, groups, "clients")
    messages, metrics = dict[str, Tensor](), dict[str, Tensor]()
    for i, (kept, sent, measured) in played:
        place = torch.as_tensor(groups[i], device=fed.device)
        for name, t in kept.items():
            state.client_params[name][where[place]] = t
        _put(messages, sent, place, len(where))
        _put(metrics, measured, place, len(where))
    return messages, metrics


def _groups(
    shapes: Tensor | None, sizes: np.ndarray, phases: Sequence[Phase], most: int
) -> Iterator[np.ndarray]:
    """Yield groups of at most so many clients that are trained together, as positions.

    The parameters of a group have equal shapes. Clients with most steps come first.
    """
    batch = next((p.batch_size for p in phases[:1]), None) or sizes.max(initial=1)
    steps = np.ceil(sizes / batch)
    kinds = 0 * sizes if shapes is None else shapes.cpu().numpy()
    for kind in np.unique(kinds):
        same = np.flatnonzero(kinds == kind)
        order = same[np.argsort(-steps[same], kind="stable")]
        yield from (order[some] for some in group_by_size(sizes[order], lambda width: most))


@torch.no_grad()
def _end(
    algorithm: Algorithm, cohort: Cohort, trained: Cohort, local: Collection[str], score: bool
) -> tuple[Params, Params, Params]:
    """End the round of clients that share a program, after their last phase.

    Returns:
        Their local parameters, their messages, and their metrics: the ``loss``, and accuracies as
        in ``Report.adapted``; ``[clients, ...]`` by name.
    """
    fed, clients, context = cohort.fed, cohort.clients, cohort.context

    def end(before: Params, after: Params, context: Params) -> Update:
        update = algorithm.client_update(fed.net, before, after, {**context, **cohort.common})
        return _pair(algorithm, "client_update", update)

    ends = vmap_clients(end, len(clients))(cohort.params, trained.params, context)
    last = algorithm.postprocess(cohort, trained.params, ends)
    own, message = _pair(algorithm, "postprocess", last)
    _require_kept(algorithm, own, {n: cohort.params[n] for n in local})
    after, metrics = {**trained.params, **own}, {"loss": trained.loss}
    nan = torch.full((len(clients),), torch.nan)  # without examples there is nothing to evaluate
    one = one_client(partial(accuracy, algorithm), fed.net, cohort.common)
    for name in SPLITS if score else ():
        batch = getattr(fed, name).all_examples(clients)
        found = vmap_clients(one, len(clients))(after, context, batch) if len(batch.y[0]) else nan
        metrics[name] = found.double().cpu()
    return {n: after[n] for n in local}, message, metrics


def _pair(algorithm: Algorithm, hook: str, update: Any) -> Update:
    """Return the result of a hook if it is a pair of dictionaries of tensors; TypeError if not."""
    if not isinstance(update, tuple | list) or len(update) != 2:
        need = "must return a pair: what a client keeps, and what it sends"
        raise TypeError(f"{type(algorithm).__name__}.{hook} {need}, got {short_repr(update)}")
    own, message = (tensors(algorithm, hook, part) for part in update)
    return own, message


def _require_kept(algorithm: Algorithm, own: Params, local: Params) -> None:
    """Raise ValueError if a client keeps what is not local, or is of another shape or type."""
    for name, t in own.items():
        where = f"{type(algorithm).__name__}.client_update: what a client keeps"
        if name not in local:
            known = ", ".join(local) or "none"
            raise ValueError(f"{where}, {name!r}, is none of its local parameters, {known}")
        now, was = (f"{param.dtype} {[*param.shape[1:]]}" for param in (t, local[name]))
        if now != was:
            raise ValueError(f"{where}, {name!r}, is {now}, but its local parameter is {was}")


def _put(columns: Params, found: Params, place: Tensor, length: int) -> None:
    """Write the results of some clients to their positions in columns ``[length, ...]``."""
    for name, clients in found.items():
        if name not in columns:
            columns[name] = clients.new_empty(length, *clients.shape[1:])
        column = columns[name]
        column.index_copy_(0, place.to(column.device), clients.to(column))
