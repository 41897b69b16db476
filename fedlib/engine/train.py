"""The heart: clients are rows of stacked leaves, trained by one program."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedlib.engine.batches import Plan
from fedlib.engine.program import Loss, program
from fedlib.engine.seen import UNSEEN, Seen
from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation
from fedlib.models import Params
from fedlib.optim import Optimizer
from fedlib.values import one_of, value

FEATURES = "features"  # as many random numbers as a model has features


def noise_of(name: str) -> str:
    """Return what a phase's random numbers of one name are called in a batch.

    All numbers but those of augmentation are its "noise", of which a model that drops units takes
    the last.
    """
    return f"noise:{name}"


class TrainingDiverged(FloatingPointError):
    """A loss or a weight stopped being a finite number; ``clients`` are the ids of whose."""

    def __init__(self, message: str, clients: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.clients = tuple(clients)


@value
class EarlyStop:
    """Stop a client when its validation loss stops improving, and keep its best weights.

    Checked every ``every`` epochs of the client; an improvement counts when larger than
    ``min_delta``; after ``patience`` checks without one the client stands still. ``keep`` "last"
    keeps the weights that it has then, as 001's released code does by mistake.
    """

    every: int = 5
    patience: int = 10
    min_delta: float = 0.0
    keep: str = "best"

    def check(self) -> None:
        one_of("keep", self.keep, ("best", "last"))
        if self.every < 1 or self.patience < 1:
            raise ValueError(f"every and patience must be >= 1, got {self}")
        if self.min_delta < 0:
            raise ValueError(f"EarlyStop.min_delta must be >= 0, got {self.min_delta}")


@value
class Phase:
    """One stretch of local training: which leaves move, on which data, how.

    ``train`` are prefixes of the leaves that move, "" is all of them, among the ``side`` that is
    "local", "shared" or "both". ``loss`` names the algorithm's method to minimise. ``noise`` are
    pairs of a name and how many uniform random numbers per example the loss finds in its batch
    under ``noise_of`` that name; "features" is one for each of the model's features. ``watch`` is
    what early stopping looks at, on validation examples: "nll", the negative log-likelihood of
    the algorithm's predictions, or "loss".
    """

    optimizer: Optimizer
    epochs: int = 1
    batch_size: int | None = 64
    train: tuple[str, ...] = ("",)
    loss: str = "loss"
    stop: EarlyStop | None = None
    noise: tuple[tuple[str, int | str], ...] = ()
    watch: str = "nll"
    side: str = "both"

    def check(self) -> None:
        one_of("side", self.side, ("local", "shared", "both"))
        one_of("watch", self.watch, ("nll", "loss"))
        if self.epochs < 1:
            raise ValueError(f"Phase.epochs must be >= 1, got {self.epochs}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"Phase.batch_size must be >= 1 or None, got {self.batch_size}")
        for name, count in self.noise:
            if count != FEATURES and (isinstance(count, str) or count < 0):
                raise ValueError(f"Phase.noise, {name}: numbers must be >= 0, got {count!r}")

    def moves(self, leaves: Iterable[str], local: Collection[str]) -> tuple[str, ...]:
        """Return which of some leaves move, given which ones are local."""
        sides = {"both": (True, False), "local": (True,), "shared": (False,)}[self.side]
        return tuple(n for n in leaves if n.startswith(self.train) and (n in local) in sides)


@dataclass(eq=False)
class Cohort:
    """Clients that are trained together: ``rows`` int64 ``[clients]`` of a federation.

    ``leaves`` and ``context`` carry the client axis, ``common`` does not; ``local`` are the names
    of local leaves, ``seen`` is what is known of these clients' examples.
    """

    fed: Federation
    rows: np.ndarray
    leaves: Params
    context: Params
    common: Params
    local: Collection[str] = ()
    seen: Seen = UNSEEN

    @property
    def where(self) -> Tensor:
        """The rows on the federation's device."""
        return torch.as_tensor(self.rows, device=self.fed.device)

    def part(self, start: int, end: int) -> Cohort:
        """Return some of the clients."""
        leaves, context = (
            {n: t[start:end] for n, t in part.items()} for part in (self.leaves, self.context)
        )
        rows, seen = self.rows[start:end], self.seen.rows(start, end)
        return replace(self, rows=rows, leaves=leaves, context=context, seen=seen)


def train(
    cohort: Cohort,
    phase: Phase,
    plan: Plan,
    loss: Loss,
    validation_loss: Loss | None = None,
    key: Hashable = None,
) -> tuple[Params, Tensor]:
    """Train a cohort for a phase and return its leaves and mean losses ``[clients]``.

    ``loss`` and ``validation_loss`` are functions of ONE client ``(params, context, batch,
    common)``; ``key`` tells losses apart, so that a GPU may replay what it recorded for an earlier
    cohort. A client that has run out of batches, or that stopped early, ends with the weights it
    had then: its row is copied out at that moment, so that no momentum can move it afterwards.
    Where the phase trains no leaf at all, they come back as they were.
    """
    fed, leaves = cohort.fed, cohort.leaves
    names = phase.moves(leaves, cohort.local)
    if not names:
        return leaves, torch.zeros(len(cohort.rows), device=fed.device)
    parts = leaves, cohort.context, cohort.common
    heart = program(fed, key, loss, phase.optimizer, names, *parts)
    keeper = _Keeper(cohort, phase, plan, validation_loss)
    moving = heart.moving
    keeper.before(moving)
    losses = []
    for t, batch in enumerate(_batches(cohort, phase, plan)):
        losses.append(heart.step(batch))
        if keeper.after_step(t, moving):
            break
    mean = _mean_loss(losses, plan, fed, cohort.rows)
    # A recorded program trains the next cohort in the same buffers.
    last = {n: t.clone() if t.is_cuda else t for n, t in moving.items()}
    return {**leaves, **keeper.result(last)}, mean


def _batches(cohort: Cohort, phase: Phase, plan: Plan) -> Iterator[Params]:
    """Yield each step's batch, on a CPU cut to the widest client, on a GPU always of one shape."""
    fed, rows = cohort.fed, cohort.where
    widths = plan.counts.max(0, initial=0)
    if rows.is_cuda:
        widths = np.full_like(widths, plan.positions.shape[2])
    named = {n: fed.net.width if k == FEATURES else int(k) for n, k in phase.noise}
    numbers = fed.train.noise_taken + sum(named.values()) + fed.net.noise
    drawn = plan.noise(numbers) if numbers else None
    at, seen = (rows, plan.positions, plan.counts, widths), cohort.seen
    for batch in fed.train.batches(*at, drawn, seen.train, examples=not seen.instead):
        u = batch.get("noise")
        parts = () if u is None else u.split([*named.values(), fed.net.noise], -1)
        yield batch | {noise_of(n): u for n, u in zip(named, parts, strict=False)}


def _mean_loss(losses: list[Tensor], plan: Plan, fed: Federation, rows: np.ndarray) -> Tensor:
    stacked = torch.stack(losses, 1) if losses else torch.zeros(len(rows), 0)
    real = torch.as_tensor(plan.counts[:, : stacked.shape[1]] > 0, device=stacked.device)
    bad = (~stacked.isfinite() & real).any(1)
    if bool(bad.any()):
        who = [int(fed.ids[rows[i]]) for i in torch.nonzero(bad)[:, 0].tolist()]
        raise TrainingDiverged(f"the loss of client {', '.join(map(str, who))} is not finite", who)
    return torch.where(real, stacked, 0).sum(1) / real.sum(1).clamp(min=1)


class _Keeper:
    """Remembers every row's weights at the moment it finishes, or at its best validation loss."""

    def __init__(
        self, cohort: Cohort, phase: Phase, plan: Plan, validation_loss: Loss | None
    ) -> None:
        self.cohort, self.rows, self.phase, self.plan = cohort, cohort.where, phase, plan
        rows, self.loss = cohort.rows, None
        if phase.stop is not None and validation_loss is not None:
            self.loss = vmap_clients(validation_loss, len(rows), common=1)
        self.keeps_best = phase.stop is not None and phase.stop.keep == "best"
        self.kept: Params = {}
        self.best = np.full(len(rows), np.inf)
        self.waited = np.zeros(len(rows), dtype=np.int64)
        self.done = plan.ends == 0
        self.moments = set(plan.ends.tolist())

    def after_step(self, t: int, moving: Params) -> bool:
        """Look at the clients after step ``t``; return true when nobody has anything left to do."""
        if self.loss is None and t + 1 not in self.moments:
            return False
        if self.loss is not None and self.phase.stop is not None:
            every = self.phase.stop.every * self.plan.per_epoch
            due = ~self.done & ((t + 1) % np.maximum(every, 1) == 0)
            if due.any():
                self._check(due, moving)
        ended = ~self.done & ((self.plan.ends == t + 1) | self._out_of_patience())
        if ended.any() and not (ended.all() and self.loss is None):
            self._keep(ended & ~(np.isfinite(self.best) & self.keeps_best), moving)
        self.done |= ended
        return bool(self.done.all())

    def before(self, leaves: Params) -> None:
        """Keep the weights of clients that have no example at all."""
        self._keep(self.done, leaves)

    def result(self, last: Params) -> Params:
        """Return the trained leaves, each row as it was when kept."""
        return {n: self.kept.get(n, t) for n, t in last.items()}

    def _check(self, due: np.ndarray, moving: Params) -> None:
        assert self.loss is not None and self.phase.stop is not None
        c = self.cohort
        with torch.no_grad():
            held = c.seen.validation
            examples = not (held and c.seen.instead)
            batch = c.fed.validation.whole(self.rows, held, examples)
            loss = self.loss({**c.leaves, **moving}, c.context, batch, c.common)
        now = loss.double().cpu().numpy()
        better = due & (now < self.best - self.phase.stop.min_delta)
        self.best[better] = now[better]
        self.waited[due] += 1
        self.waited[better] = 0
        if self.keeps_best:
            self._keep(better, moving)

    def _out_of_patience(self) -> np.ndarray:
        patience = self.phase.stop.patience if self.phase.stop else np.inf
        return self.waited >= patience

    def _keep(self, which: np.ndarray, leaves: Params) -> None:
        if not which.any():
            return
        mask = torch.as_tensor(which, device=self.rows.device)
        for name, leaf in leaves.items():
            now = leaf.detach()
            old = self.kept.get(name, now)
            self.kept[name] = torch.where(mask.view(-1, *[1] * (now.ndim - 1)), now, old).clone()
