"""The heart: clients are rows of stacked leaves, trained by one program."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedlib.engine.batches import Plan
from fedlib.engine.program import Loss, program
from fedlib.engine.seen import UNSEEN, Seen
from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation, Table
from fedlib.models import Params
from fedlib.optim import Optimizer
from fedlib.values import one_of, value


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
    "local", "shared" or "both". ``loss`` names the algorithm's method to minimise. ``noise`` is how
    many uniform random numbers per example the loss finds in its batch, before those that the
    task's model asks for, and ``noisy`` how many more for each of the model's features. ``watch``
    is what early stopping looks at, on validation examples: "nll", the negative log-likelihood of
    the algorithm's predictions, or "loss".
    """

    optimizer: Optimizer
    epochs: int = 1
    batch_size: int | None = 64
    train: tuple[str, ...] = ("",)
    loss: str = "loss"
    drop_last: bool = False
    stop: EarlyStop | None = None
    noise: int = 0
    noisy: int = 0
    watch: str = "nll"
    side: str = "both"

    def check(self) -> None:
        one_of("side", self.side, ("local", "shared", "both"))
        one_of("watch", self.watch, ("nll", "loss"))
        if self.epochs < 1:
            raise ValueError(f"Phase.epochs must be >= 1, got {self.epochs}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"Phase.batch_size must be >= 1 or None, got {self.batch_size}")
        for name in ("noise", "noisy"):
            if getattr(self, name) < 0:
                raise ValueError(f"Phase.{name} must be >= 0, got {getattr(self, name)}")

    def moves(self, leaves: Iterable[str], local: Collection[str]) -> tuple[str, ...]:
        """Return which of some leaves move, given which ones are local."""
        sides = {"both": (True, False), "local": (True,), "shared": (False,)}[self.side]
        return tuple(n for n in leaves if n.startswith(self.train) and (n in local) in sides)


def train(
    fed: Federation,
    rows: np.ndarray,
    leaves: Params,
    context: Params,
    common: Params,
    *,
    phase: Phase,
    plan: Plan,
    loss: Loss,
    validation_loss: Loss | None = None,
    key: Hashable = None,
    local: Collection[str] = (),
    seen: Seen = UNSEEN,
) -> tuple[Params, Tensor]:
    """Train the clients of one program and return their leaves and mean losses ``[clients]``.

    ``leaves`` and ``context`` carry the client axis, ``common`` does not; ``loss`` and
    ``validation_loss`` are functions of ONE client ``(params, context, batch, common)``; ``key``
    tells losses apart, so that a GPU may replay what it recorded for an earlier cohort; ``local``
    are the names of local leaves; ``seen`` is what is known of these clients' examples. A client
    that has run out of batches, or that stopped early, ends with the weights it had then: its row
    is copied out at that moment, so that no momentum can move it afterwards. Where the phase trains
    no leaf at all, they come back as they were.
    """
    names = phase.moves(leaves, local)
    if not names:
        return leaves, torch.zeros(len(rows), device=fed.device)
    where = torch.as_tensor(rows, device=fed.device)
    heart = program(fed, key, loss, phase.optimizer, names, leaves, context, common)
    keeper = _Keeper(fed, where, phase, plan, validation_loss, seen.validation)
    moving = heart.moving
    keeper.before(moving)
    losses = []
    numbers = phase.noise + phase.noisy * fed.net.width + fed.net.noise
    for t, batch in enumerate(_batches(fed.train, where, plan, numbers, seen.train)):
        losses.append(heart.step(batch))
        if keeper.after_step(t, leaves, moving, context, common):
            break
    mean = _mean_loss(losses, plan, fed, rows)
    # A recorded program trains the next cohort in the same buffers.
    last = {n: t.clone() if t.is_cuda else t for n, t in moving.items()}
    return {**leaves, **keeper.result(last)}, mean


def _batches(
    table: Table, rows: Tensor, plan: Plan, noise: int, columns: Params
) -> Iterator[Params]:
    """Yield each step's batch, on a CPU cut to the widest client, on a GPU always of one shape."""
    widths = plan.counts.max(0, initial=0)
    if rows.is_cuda:
        widths = np.full_like(widths, plan.positions.shape[2])
    numbers = table.noise_taken + noise
    drawn = plan.noise(numbers) if numbers else None
    return table.batches(rows, plan.positions, plan.counts, widths, drawn, columns)


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
        self,
        fed: Federation,
        rows: Tensor,
        phase: Phase,
        plan: Plan,
        validation_loss: Loss | None,
        columns: Params,
    ) -> None:
        self.fed, self.rows, self.phase, self.plan = fed, rows, phase, plan
        self.columns = columns
        self.loss = None
        if phase.stop is not None and validation_loss is not None:
            self.loss = vmap_clients(validation_loss, len(rows), common=1)
        self.keeps_best = phase.stop is not None and phase.stop.keep == "best"
        self.kept: Params = {}
        self.best = np.full(len(rows), np.inf)
        self.waited = np.zeros(len(rows), dtype=np.int64)
        self.done = plan.ends == 0
        self.moments = set(plan.ends.tolist())

    def after_step(
        self, t: int, leaves: Params, moving: Params, context: Params, common: Params
    ) -> bool:
        """Look at the clients after step ``t``; return true when nobody has anything left to do."""
        if self.loss is None and t + 1 not in self.moments:
            return False
        if self.loss is not None and self.phase.stop is not None:
            every = self.phase.stop.every * self.plan.per_epoch
            due = ~self.done & ((t + 1) % np.maximum(every, 1) == 0)
            if due.any():
                self._check(due, leaves, moving, context, common)
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

    def _check(
        self, due: np.ndarray, leaves: Params, moving: Params, context: Params, common: Params
    ) -> None:
        assert self.loss is not None and self.phase.stop is not None
        with torch.no_grad():
            batch = self.fed.validation.whole(self.rows, self.columns)
            now = self.loss({**leaves, **moving}, context, batch, common).double().cpu().numpy()
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
