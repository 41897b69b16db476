"""From the mathematics of one client to a cohort, and its step: forward, backward, optimiser."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map_only

from fedlib.models import Batch, FunctionalModel, Params, is_statistic
from fedlib.optim import Optimizer, Stepper


def vmap_clients(fn: Callable[..., Any], clients: int) -> Callable[..., Any]:
    """Return ``fn`` over ``num_clients`` rows: every tensor argument and result gains a first axis.

    What all clients share ``fn`` closes over. With one client the axis is squeezed away instead of
    vmapped: the same program and, up to rounding, the same result, without the grouped convolutions
    that vmap makes.
    """

    def one(*args: Any) -> Any:
        alone = fn(*tree_map_only(Tensor, lambda t: t.squeeze(0), args))
        return tree_map_only(Tensor, lambda t: t.unsqueeze(0), alone)

    return one if clients == 1 else vmap(fn)


def one_client(
    method: Callable[..., Any], net: FunctionalModel, common: Params, shared: Params | None = None
) -> Callable[[Params, Params, Any], Any]:
    """Return ``method(net, params, ctx, batch)`` as a function of one client's own.

    That is its leaves, its context and its batch; ``server_params`` are leaves, ``common`` is
    context that all clients have.
    """

    def ask(params: Params, context: Params, batch: Any) -> Any:
        return method(net, {**(shared or {}), **params}, {**context, **common}, batch)

    return ask


LARGE = 2**12  # numbers of a weight whose copying takes longer than a step's other work


class Program:
    """The step of some clients, whose ``params`` and ``context`` are stacked.

    ``loss`` is a function of ONE client ``(leaves, context, batch)``; it returns a scalar, and the
    running statistics that it moved. The leaves named in ``train`` are trained, in copies of what
    was given; running statistics among them are as the loss left them. ``first_stage``, a function
    of one client too, returns what ``settle`` puts in the place of trained leaves.
    """

    def __init__(
        self,
        loss: Callable[..., tuple[Tensor, Params]],
        optimizer: Optimizer,
        train: tuple[str, ...],
        params: Params,
        context: Params,
        after: Callable[..., Params] | None = None,
    ) -> None:
        clients = len(next(iter(params.values())))
        self._alone = clients == 1
        trained = self._bare({n: _trainable(params[n]) for n in train})
        self._statistics = {n: trained.pop(n) for n in train if is_statistic(n)}
        self._trained = {n: t.requires_grad_(True) for n, t in trained.items()}
        self._turned: frozenset[str] = frozenset()
        self._parts = self._bare(params), self._bare(context)
        self._losses = loss if self._alone else vmap_clients(loss, clients)
        self._after = after if after is None or self._alone else vmap_clients(after, clients)
        self._kind = optimizer
        self.optimizer: Stepper | None = None

    @property
    def moving(self) -> Params:
        """The leaves that the step trains, ``[clients, ...]``, as they are now."""
        now = {n: t.detach() for n, t in self._now().items()}
        return {n: t.unsqueeze(0) for n, t in now.items()} if self._alone else now

    def step(self, batch: Batch) -> Tensor:
        """Take one step on a batch and return the losses before it, ``[clients]``."""
        params, context = self._parts
        losses, moved = self._losses({**params, **self._now()}, context, self._of_one(batch))
        self._statistics = moved
        loss = losses if self._alone else losses.sum()
        if self.optimizer is None:
            self.optimizer = self._first_gradient(loss)
        else:
            self.optimizer.zero_grad()
            loss.backward()
        if self._kind.clip is not None:
            self._clip(self._kind.clip)
        self.optimizer.step()
        return losses.detach().view(-1)

    @torch.no_grad()
    def settle(self, batch: Batch) -> None:
        """Let the algorithm put other values in the place of trained leaves, after a batch."""
        if self._after is None:
            return
        params, context = self._parts
        found = self._after({**params, **self._now()}, context, self._of_one(batch))
        for name, t in found.items():
            if name in self._statistics:
                self._statistics[name] = t
            else:
                self._trained[name].copy_(t.mT if name in self._turned else t)

    def _clip(self, most: float) -> None:
        """Scale every client's gradient over all leaves to the length ``most`` at most."""
        grads = [param.grad for param in self._trained.values() if param.grad is not None]
        clients = [g.unsqueeze(0) if self._alone else g for g in grads]
        length = torch.stack([g.square().flatten(1).sum(1) for g in clients]).sum(0).sqrt()
        scale = (most / (length + 1e-6)).clamp(max=1)  # as torch's own
        for g in clients:
            g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))

    def _now(self) -> Params:
        """Return the trained leaves as the loss knows them."""
        trained = {n: t.mT if n in self._turned else t for n, t in self._trained.items()}
        return trained | self._statistics

    def _first_gradient(self, loss: Tensor) -> Stepper:
        """Take the first gradient, lay large leaves out as theirs comes, and build the optimiser.

        vmap hands the gradient of a linear layer's weight over transposed, and autograd would copy
        it into the weight's layout at every step.
        """
        names, params = [*self._trained], [*self._trained.values()]
        grads = dict(zip(names, torch.autograd.grad(loss, params, allow_unused=True), strict=True))
        self._turned = frozenset(n for n, g in grads.items() if g is not None and _lies_turned(g))
        for n, param in self._trained.items():
            if n in self._turned:
                self._trained[n] = param.detach().mT.contiguous().requires_grad_(True)
            if (grad := grads[n]) is not None:
                # A fused optimiser reads both as they lie in memory: they have to lie alike.
                grad = grad.mT if n in self._turned else grad
                self._trained[n].grad = torch.empty_like(self._trained[n]).copy_(grad)
        return self._kind.build(self._trained, fused=True)

    def _bare(self, params: Params) -> Params:
        """Return the leaves of one client without their first axis, those of several as they are.

        Taken off once and not at every step; ``vmap_clients`` would do the same inside the program.
        """
        return {n: t[0] for n, t in params.items()} if self._alone else params

    def _of_one(self, batch: Batch) -> Batch:
        return batch.map(lambda t: t[0]) if self._alone else batch


def _lies_turned(g: Tensor) -> bool:
    """Return whether matrices are large, and lie in memory column by column."""
    large = g.ndim == 3 and g[0].numel() >= LARGE
    return large and not g.is_contiguous() and g.mT.is_contiguous()


def _trainable(t: Tensor) -> Tensor:
    """Copy a leaf, in the layout in which its convolutions run fastest."""
    if t.ndim >= 5:
        t = t.movedim(-3, -1).contiguous().movedim(-1, -3)
    return t.detach().clone(memory_format=torch.preserve_format)
