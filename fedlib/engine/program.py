"""From functions of one client to a cohort: vectorisation, and one optimiser step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map_only

from fedlib.models import Batch, FunctionalModel, Params, is_statistic, sparse_gradients
from fedlib.optim import Optimizer, Stepper


def vmap_clients(fn: Callable[..., Any], clients: int) -> Callable[..., Any]:
    """Vectorise a function of one client: its tensors gain a first axis ``[clients, ...]``.

    Tensors that all clients share belong in the closure of ``fn``. For one client the axis is
    removed instead, which gives the same result up to rounding and avoids the grouped convolutions
    of vmap.

    Args:
        fn: a function of one client's tensors.
        clients: the number of clients.
    """

    def one(*args: Any) -> Any:
        alone = fn(*tree_map_only(Tensor, lambda t: t.squeeze(0), args))
        return tree_map_only(Tensor, lambda t: t.unsqueeze(0), alone)

    return one if clients == 1 else vmap(fn)


def one_client(
    method: Callable[..., Any], net: FunctionalModel, common: Params, shared: Params | None = None
) -> Callable[[Params, Params, Any], Any]:
    """Return an algorithm's method as a function ``(params, context, batch)`` of one client.

    Args:
        method: a method ``(net, params, ctx, batch)``, such as the loss.
        net: the network.
        common: constants that all clients share.
        shared: parameters that all clients share, if they are not among ``params``. Default: none.

    Raises:
        RuntimeError: when the function is called, with the method's name and what to write
            instead, if vmap does not support an operation of the method.
    """

    def ask(params: Params, context: Params, batch: Any) -> Any:
        try:
            return method(net, {**(shared or {}), **params}, {**context, **common}, batch)
        except RuntimeError as error:
            for words, instead in UNSUPPORTED.items():
                if words in str(error):
                    name = getattr(method, "__qualname__", "predict").rpartition("<locals>.")[2]
                    way = (
                        ""
                        if shared is not None
                        else ", or train without vmap: run(..., debug=True)"
                    )
                    why = f"{name} is vmapped over clients and must not use {instead}{way}"
                    raise RuntimeError(why) from error
            raise

    return ask


# What vmap does not support, by words of torch's message.
UNSUPPORTED = {
    "control flow": "an `if` on the values of a tensor; use torch.where",
    ".item() on a Tensor": "a tensor's .item(), float() or int(); compute with the tensor",
    "that doesn't have storage": "numpy or tolist(); use torch",
    "random operation": "torch's random numbers; read batch.random (`Phase.random_inputs`)",
    "dynamic shape": "shapes that depend on values, as x[mask] has; multiply by the mask",
}


LARGE = 2**12  # elements above which copying a weight takes longer than the rest of a step


class Program:
    """The training step of some clients: forward, backward, optimiser.

    Args:
        loss: a function of one client ``(params, context, batch)`` that returns its loss, a scalar,
            and its updated running statistics.
        optimizer: the optimiser.
        train: names of the trained parameters. Copies of them are trained.
        params: all parameters, ``[clients, ...]``.
        context: constants that differ between clients, ``[clients, ...]``.
        after: a function of one client with the same arguments that returns new values of trained
            parameters; ``settle`` calls it. Default: none.
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
        on_cpu = all(t.is_cpu for t in trained.values())
        self._sparse = self._alone and on_cpu and optimizer.is_plain
        self.optimizer: Stepper | None = None

    @property
    def moving(self) -> Params:
        """The trained parameters at present, ``[clients, ...]``."""
        now = {n: t.detach() for n, t in self._now().items()}
        return {n: t.unsqueeze(0) for n, t in now.items()} if self._alone else now

    def step(self, batch: Batch) -> Tensor:
        """Take one step on a batch and return the losses before it, ``[clients]``."""
        params, context = self._parts
        with sparse_gradients(self._sparse):
            losses, moved = self._losses({**params, **self._now()}, context, self._of_one(batch))
        loss = losses if self._alone else losses.sum()
        if self.optimizer is None:
            self.optimizer = self._first_gradient(loss)
        else:
            self.optimizer.zero_grad()
            loss.backward()
        self._put(moved)  # after the backward pass, which may need the statistics before the step
        if self._kind.clip is not None:
            self._clip(self._kind.clip)
        self.optimizer.step()
        return losses.detach().view(-1)

    def losses(self, batch: Batch) -> Tensor:
        """Return the losses of a batch, ``[clients]``, without a step."""
        params, context = self._parts
        losses, _ = self._losses({**params, **self._now()}, context, self._of_one(batch))
        return losses.detach().view(-1)

    @torch.no_grad()
    def settle(self, batch: Batch) -> None:
        """Replace trained parameters by the results of ``after``, at the end of a batch."""
        if self._after is None:
            return
        params, context = self._parts
        self._put(self._after({**params, **self._now()}, context, self._of_one(batch)))

    def restart(self, params: Params) -> None:
        """Begin anew from other parameters ``[clients, ...]``, at the same addresses."""
        self._put(self._bare({n: params[n] for n in (*self._trained, *self._statistics)}))
        for t in self.optimizer.memory.values() if self.optimizer else ():
            t.zero_()

    @torch.no_grad()
    def _put(self, values: Params) -> None:
        """Copy new values into trained parameters and running statistics."""
        for name, t in values.items():
            if name in self._statistics:
                self._statistics[name].copy_(t)
            else:
                self._trained[name].copy_(t.mT if name in self._turned else t)

    def _clip(self, most: float) -> None:
        """Scale each client's gradient over all parameters to a norm of at most ``most``."""
        grads = [param.grad for param in self._trained.values() if param.grad is not None]
        stacked = [g.unsqueeze(0) if self._alone else g for g in grads]
        length = (
            torch.stack([g.square().unsqueeze(-1).flatten(1).sum(1) for g in stacked]).sum(0).sqrt()
        )
        scale = (most / (length + 1e-6)).clamp(max=1)  # as torch.nn.utils.clip_grad_norm_
        for g in stacked:
            g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))

    def _now(self) -> Params:
        """Return the trained parameters in the shapes that the loss expects."""
        trained = {n: t.mT if n in self._turned else t for n, t in self._trained.items()}
        return trained | self._statistics

    def _first_gradient(self, loss: Tensor) -> Stepper:
        """Compute the first gradient, adapt the layout of large parameters, build the optimiser.

        The gradient of a linear layer's weight under vmap is transposed in memory, and autograd
        would copy it into the weight's layout at every step.
        """
        if not loss.requires_grad:
            raise ValueError(
                f"the loss depends on no trained parameter ({', '.join(self._trained)})"
            )
        names, params = [*self._trained], [*self._trained.values()]
        grads = dict(zip(names, torch.autograd.grad(loss, params, allow_unused=True), strict=True))
        self._turned = frozenset(n for n, g in grads.items() if g is not None and _lies_turned(g))
        for n, param in self._trained.items():
            if n in self._turned:
                self._trained[n] = param.detach().mT.contiguous().requires_grad_(True)
            if (grad := grads[n]) is not None and grad.is_sparse:
                self._trained[n].grad = grad
            elif grad is not None:
                # A fused optimiser needs both in the same memory layout.
                grad = grad.mT if n in self._turned else grad
                self._trained[n].grad = torch.empty_like(self._trained[n]).copy_(grad)
        return self._kind.build(self._trained, fused=True)

    def _bare(self, params: Params) -> Params:
        """Return parameters without the client axis if there is one client, else unchanged.

        Done once here rather than at every step by ``vmap_clients``.
        """
        return {n: t[0] for n, t in params.items()} if self._alone else params

    def _of_one(self, batch: Batch) -> Batch:
        return batch.map(lambda t: t[0]) if self._alone else batch


def _lies_turned(g: Tensor) -> bool:
    """Return whether matrices are large and stored column by column."""
    large = g.ndim == 3 and g[0].numel() >= LARGE
    return large and not g.is_contiguous() and g.mT.is_contiguous()


def _trainable(t: Tensor) -> Tensor:
    """Copy a parameter, in the memory layout in which its convolutions are fastest."""
    if t.ndim >= 5:
        t = t.movedim(-3, -1).contiguous().movedim(-1, -3)
    return t.detach().clone(memory_format=torch.preserve_format)
