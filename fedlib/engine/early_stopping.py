"""Early stopping of a client's local training, and the end of clients with fewer steps."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedlib.engine.batches import Plan
from fedlib.engine.program import Program, vmap_clients
from fedlib.engine.protocol import Cohort, Phase
from fedlib.models import Params


class EarlyStopper:
    """Stores each client's parameters when it ends, or at its lowest validation loss.

    Args:
        cohort: the clients.
        phase: the phase, with its ``EarlyStop`` or None.
        plan: their mini-batches.
        loss: the monitored loss of one client.
        program: the program that trains them.
    """

    def __init__(
        self,
        cohort: Cohort,
        phase: Phase,
        plan: Plan,
        loss: Callable[..., Tensor],
        program: Program,
    ) -> None:
        self.cohort, self.stop, self.plan, self.program = cohort, phase.stop, plan, program
        self.loss = vmap_clients(loss, len(plan.ids))
        self.kept: Params = {}
        self.best = np.full(len(plan.ids), np.inf)
        self.waited = np.zeros(len(plan.ids), dtype=np.int64)
        self.done = plan.ends == 0  # clients without examples
        # Without validation examples the loss would be 0, the lowest possible.
        self.watched = cohort.fed.validation.sizes[cohort.clients.cpu().numpy()] > 0
        self.last = {*plan.ends.tolist()}  # numbers of steps after which some client ends
        self._keep(self.done)

    def after_step(self, t: int) -> bool:
        """Check the clients after step ``t``; return whether all of them have ended."""
        if self.stop is None and t + 1 not in self.last:
            return False
        ended = ~self.done & (self.plan.ends == t + 1)
        if self.stop is None:
            if not ended.all():  # else all end with the current parameters
                self._keep(ended)
        else:
            every = np.maximum(self.stop.every * self.plan.per_epoch, 1)
            due = ~self.done & self.watched & ((t + 1) % every == 0)
            better = self._improved(due) if due.any() else due
            self.waited = np.where(better, 0, self.waited + due)
            ended |= ~self.done & (self.waited >= self.stop.patience)
            never = np.isinf(self.best) | (self.stop.keep == "last")
            self._keep(ended & never | better & ~never)
        self.done |= ended
        return bool(self.done.all())

    def _improved(self, due: np.ndarray) -> np.ndarray:
        """Update the lowest validation loss of ``due`` clients; return which of them improved."""
        assert self.stop is not None
        c = self.cohort
        with torch.no_grad():
            batch = c.fed.validation.all_examples(c.clients, c.precomputed_validation)
            params = {**c.params, **self.program.moving}
            now = self.loss(params, c.context, batch).double().cpu().numpy()
        better: np.ndarray = due & (now < self.best - self.stop.min_delta)
        self.best[better] = now[better]
        return better

    def _keep(self, which: np.ndarray) -> None:
        if not which.any():
            return
        mask = torch.as_tensor(which, device=self.cohort.clients.device)
        for name, now in self.program.moving.items():
            old = self.kept.get(name, now)
            self.kept[name] = torch.where(mask.view(-1, *[1] * (now.ndim - 1)), now, old).clone()
