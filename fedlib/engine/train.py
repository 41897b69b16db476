"""Local training: parameters of clients are stacked and trained by one vectorised program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedlib.engine.batches import Plan, precompute
from fedlib.engine.captured import captured
from fedlib.engine.early_stopping import EarlyStopper
from fedlib.engine.evaluate import nll
from fedlib.engine.program import Program, one_client
from fedlib.engine.protocol import (
    Algorithm,
    Cohort,
    Phase,
    TrainingDiverged,
    numbers_of,
    precompute_of,
)
from fedlib.engine.width import Width
from fedlib.federation import NOTHING, Federation
from fedlib.models import Batch, Params, Statistics, is_statistic
from fedlib.parallel import Found, map_ordered


def train_phase(
    algorithm: Algorithm,
    cohort: Cohort,
    phase: Phase,
    plan: Plan,
    width: Width,
) -> Cohort:
    """Train a cohort for one phase and return the cohort afterwards.

    A phase that trains no parameter returns the cohort unchanged, with the losses of the phase
    before.

    Args:
        algorithm: the algorithm.
        cohort: the clients with their parameters before the phase.
        phase: the phase.
        plan: their mini-batches.
        width: how many clients share a program.
    """
    moving = phase.trained_names(cohort.params, width.state.client_params)
    if not moving:
        return cohort
    cohort = with_precomputed(algorithm, cohort, phase, moving)
    trained = {n: cohort.params[n] for n in moving}
    size = width.of_phase(trained, vectors=bool(cohort.precomputed.replace))

    def play(some: slice) -> tuple[Params, Tensor]:
        return train_together(algorithm, cohort.part(some), phase, plan.rows(some), moving)

    after, loss = in_parts(play, len(cohort.clients), size, f"phase {phase.loss} {phase.train}")
    params = {**cohort.params, **after}
    return Cohort(cohort.fed, cohort.clients, params, cohort.context, cohort.common, loss)


def in_parts(fn: Callable[[slice], Found], clients: int, size: int, kind: str) -> Found:
    """Call ``fn`` on consecutive slices of ``size`` clients and concatenate the results.

    Args:
        fn: a function of a slice that returns tensors ``[clients in the slice, ...]``.
        clients: the number of all clients.
        size: the number of clients per slice.
        kind: a name for this kind of work; its duration is estimated from earlier ones of that
            name.
    """
    parts = [slice(start, start + size) for start in range(0, clients, size)]
    found = map_ordered(fn, parts, kind)
    return found[0] if len(found) == 1 else tree_map(lambda *rows: torch.cat(rows), *found)


def with_precomputed(
    algorithm: Algorithm, cohort: Cohort, phase: Phase, moving: Collection[str]
) -> Cohort:
    """Return the cohort with the quantities that are precomputed for the loss of a phase.

    They depend on parameters that the phase does not train, and are therefore constant during it.
    """
    fed, method = cohort.fed, precompute_of(getattr(algorithm, phase.loss))
    if method is None:
        return cohort
    frozen = {n: t for n, t in cohort.params.items() if n not in moving}
    asked = one_client(method, fed.net, cohort.common), cohort.clients, frozen, cohort.context
    seen = precompute(fed, fed.train, *asked)
    watched = phase.stop is not None and phase.monitor == "loss" and any(seen)
    held = precompute(fed, fed.validation, *asked) if watched else NOTHING
    return replace(cohort, precomputed=seen, precomputed_validation=held)


def train_together(
    algorithm: Algorithm, cohort: Cohort, phase: Phase, plan: Plan, moving: tuple[str, ...]
) -> tuple[Params, Tensor]:
    """Train a cohort in one program; return trained parameters and mean losses ``[clients]``.

    A client that runs out of batches or stops early ends with its parameters at that time. They are
    copied at that step, because momentum could change them afterwards.

    Args:
        algorithm: the algorithm.
        cohort: the clients with their parameters before the phase.
        phase: the phase.
        plan: their mini-batches.
        moving: names of the trained parameters.
    """

    _, round, _ = plan.where
    phase = replace(phase, optimizer=phase.optimizer.at(round))
    make = partial(program_of, algorithm, phase, moving)
    take, noise = partial(steps_of, algorithm, phase), _noise_of(cohort.fed, phase)
    graph = captured(algorithm, cohort, phase, plan, noise, make, take)
    program = make(cohort) if graph is None else graph.program
    steps = take(program, cohort, plan) if graph is None else graph.steps(plan)
    named = getattr(algorithm, phase.loss)
    monitored = named if phase.monitor == "loss" else partial(nll, algorithm)
    keeper = EarlyStopper(cohort, phase, plan, _of_client(monitored, cohort), program)
    losses = []
    for t, loss in enumerate(steps):
        losses.append(loss)
        if keeper.after_step(t):
            break
    if round == 0:  # after the steps, whose errors name the client
        _check_padding(algorithm, phase, make(cohort), cohort, plan)
    ends = {n: keeper.kept.get(n, t) for n, t in program.moving.items()}
    if graph is not None:  # its buffers are those of the next round, too
        ends = {n: t.clone() for n, t in ends.items()}
    return ends, _mean_loss(losses, plan, cohort.fed)


def _check_padding(
    algorithm: Algorithm, phase: Phase, program: Program, cohort: Cohort, plan: Plan
) -> None:
    """Check that a loss does not depend on the examples of weight 0 that fill up a mini-batch.

    The check replaces these examples, in the first mini-batch that has any, by the first example of
    the mini-batch, and compares the losses. Like padding, it is one of the client's own: a loss may
    be infinite for labels that a client does not hold (FedRoD).

    Raises:
        ValueError: if the loss of a client changes.
    """
    for batch in batches(cohort, phase, plan):
        filled = (batch.weight == 0) & (batch.weight.sum(1, keepdim=True) > 0)
        if not bool(filled.any()):
            continue

        def refilled(t: Tensor, filled: Tensor = filled) -> Tensor:
            return torch.where(filled.view(*filled.shape, *[1] * (t.ndim - 2)), t[:, :1], t)

        other = replace(batch.map(refilled), weight=batch.weight)
        before, after = program.losses(batch), program.losses(other)
        differ = ~torch.isclose(before, after, rtol=1e-3, atol=1e-5, equal_nan=True)
        if bool((differ & filled.any(1)).any()):
            raise ValueError(
                f"{type(algorithm).__name__}.{phase.loss} depends on the padding of a mini-batch, "
                "whose weight is 0: multiply the losses of examples (reduction='none') by "
                "batch.weight, and divide their sum by batch.weight.sum()"
            )
        return


def program_of(
    algorithm: Algorithm, phase: Phase, moving: tuple[str, ...], cohort: Cohort
) -> Program:
    """Return the program that trains some parameters of a cohort."""
    loss = _recorded(algorithm, _of_client(getattr(algorithm, phase.loss), cohort), cohort, moving)
    project = _of_client(getattr(algorithm, phase.project), cohort) if phase.project else None
    return Program(loss, phase.optimizer, moving, cohort.params, cohort.context, project)


def _of_client(method: Callable[..., Any], cohort: Cohort) -> Callable[..., Any]:
    return one_client(method, cohort.fed.net, cohort.common)


def steps_of(
    algorithm: Algorithm, phase: Phase, program: Program, cohort: Cohort, plan: Plan
) -> Iterator[Tensor]:
    """Take the steps of a plan; yield the losses before each, ``[clients]``."""
    for t, batch in enumerate(batches(cohort, phase, plan)):
        try:
            losses = program.step(batch)
        except Exception as error:
            who, what = cohort.fed.called(plan.ids), f"{type(algorithm).__name__}.{phase.loss}"
            error.add_note(f"in {what} of client {who}, step {t}")
            raise
        for _ in range(1, phase.steps_per_batch):
            program.step(batch)
        program.settle(batch)
        yield losses


def _recorded(
    algorithm: Algorithm, loss: Callable[..., Tensor], cohort: Cohort, moving: Collection[str]
) -> Callable[..., tuple[Tensor, Params]]:
    """Return a client's loss that also returns the running statistics updated by its batch.

    Raises:
        ValueError: if the network has dropout or BatchNorm and the loss evaluates it in eval mode.
    """
    statistics = [n for n in moving if is_statistic(n)]
    drops = cohort.fed.net.noise and cohort.fed.net.has_copy({n: cohort.params[n] for n in moving})
    needed = statistics or drops

    def recorded(params: Params, context: Params, batch: Batch) -> tuple[Tensor, Params]:
        record = Statistics({n: params[n] for n in statistics})
        value = loss(params, context, replace(batch, statistics=record))
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = [*value.shape] if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"a loss must return a scalar tensor, got {got}")
        if needed and not record.used:
            what = f"{type(algorithm).__name__} trains without dropout and BatchNorm of the network"
            raise ValueError(f"{what}: its loss must pass the batch on, net(params, x, batch)")
        return value, record.after

    return recorded


def batches(cohort: Cohort, phase: Phase, plan: Plan) -> Iterator[Batch]:
    """Yield the mini-batch of every step, ``[clients, width, ...]``.

    On a CPU the width is that of the largest batch of the step; on a GPU all steps have one shape.
    """
    fed, (_, steps, wide) = cohort.fed, plan.positions.shape
    fixed = cohort.clients.is_cuda
    widths = np.full(steps, wide) if fixed else plan.counts.max(0, initial=0)
    numbers = _noise_of(fed, phase)
    drawn = plan.noise(numbers) if numbers else None
    seen = fed.train.batches(
        cohort.clients, plan.positions, plan.counts, widths, drawn, cohort.precomputed
    )
    named = {n: numbers_of(fed.net, k) for n, k in phase.random_inputs}
    for batch in seen:
        if batch.noise is not None:
            parts = batch.noise.split([*named.values(), fed.net.noise], -1)
            batch.random = dict(zip(named, parts, strict=False))
        yield batch


def _noise_of(fed: Federation, phase: Phase) -> int:
    """Return how many random numbers a step of a phase needs for each example."""
    named = sum(numbers_of(fed.net, k) for _, k in phase.random_inputs)
    return fed.train.noise_taken + named + fed.net.noise


def _mean_loss(losses: list[Tensor], plan: Plan, fed: Federation) -> Tensor:
    stacked = torch.stack(losses, 1) if losses else torch.zeros(len(plan.ids), 0)
    real = torch.as_tensor(plan.counts[:, : stacked.shape[1]] > 0, device=stacked.device)
    bad = (~stacked.isfinite() & real).any(1)
    if bool(bad.any()):
        who = plan.ids[bad.cpu().numpy()].tolist()
        raise TrainingDiverged(f"the loss of client {fed.called(who)} is not finite", who)
    return torch.where(real, stacked, 0).sum(1) / real.sum(1).clamp(min=1)
