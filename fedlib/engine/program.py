"""One step of a cohort: forward, backward and optimiser, run eagerly or recorded as a CUDA graph.

A small net's step on a GPU takes less time than launching its kernels one by one. Recorded once and
replayed, a step costs one launch. A recording works on buffers of its own, so that it serves every
cohort of the same shape, round after round.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation
from fedlib.models import Params
from fedlib.optim import Optimizer

Loss = Callable[..., Tensor]
Play = Callable[[], None]
# Eager steps before a recording, in which libraries set themselves up; they train like any other.
WARM_UP = 3
# Their memory is tensors only, and all of it starts at zero.
RECORDABLE = ("sgd", "adam", "adamw", "adagrad")
_kept: WeakKeyDictionary[Federation, dict[Hashable, Recorded]] = WeakKeyDictionary()


class Program:
    """The step of some clients: ``leaves`` and ``context`` are stacked, ``common`` is not.

    The leaves named in ``train`` are trained, in copies of what was given.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: Optimizer,
        train: tuple[str, ...],
        leaves: Params,
        context: Params,
        common: Params,
    ) -> None:
        clients = len(next(iter(leaves.values())))
        self._alone = clients == 1
        trained = {n: _trainable(t) for n, t in leaves.items() if n in train}
        self._trained = {n: t.requires_grad_(True) for n, t in self._bare(trained).items()}
        self._turned: frozenset[str] = frozenset()
        self.leaves = {**self._bare(leaves), **self._trained}
        self.context, self.common = self._bare(context), common
        self.losses = loss if self._alone else vmap_clients(loss, clients, common=1)
        on_gpu = any(t.is_cuda for t in trained.values())
        self._build = partial(optimizer.build, fused=True, capturable=on_gpu)
        self.optimizer: torch.optim.Optimizer | None = None

    @property
    def moving(self) -> Params:
        """The leaves that the step trains, ``[clients, ...]``: views that see every step."""
        now = {n: t.detach() for n, t in self._seen().items()}
        return {n: t.unsqueeze(0) for n, t in now.items()} if self._alone else now

    def step(self, batch: Params) -> Tensor:
        """Take one step on a batch and return the losses before it, ``[clients]``."""
        leaves = {**self.leaves, **self._seen()}
        losses = self.losses(leaves, self.context, self._bare(batch), self.common)
        if self.optimizer is None:
            self.optimizer = self._begun(losses.sum())
        else:
            for leaf in self._trained.values():
                leaf.grad = None
            losses.sum().backward()
        self.optimizer.step()
        return losses.detach().view(-1)

    def _seen(self) -> Params:
        """Return the trained leaves as the loss knows them."""
        return {n: t.mT if n in self._turned else t for n, t in self._trained.items()}

    def _begun(self, loss: Tensor) -> torch.optim.Optimizer:
        """Take the first gradient, lay every leaf out as its own comes, and build the optimiser.

        vmap hands the gradient of a linear layer's weight over transposed, and autograd would copy
        it into the weight's layout at every step.
        """
        grads = torch.autograd.grad(loss, list(self._trained.values()), allow_unused=True)
        by_name = dict(zip(self._trained, grads, strict=True))
        self._turned = frozenset(
            n
            for n, g in by_name.items()
            if g is not None and g.ndim == 3 and not g.is_contiguous() and g.mT.is_contiguous()
        )
        for name in self._turned:
            turned = self._trained[name].detach().mT.contiguous()
            self._trained[name] = turned.requires_grad_(True)
            by_name[name] = by_name[name].mT
        for name, leaf in self._trained.items():
            leaf.grad = by_name[name]
        return self._build(self._trained)

    def _bare(self, leaves: Params) -> Params:
        """Return the leaves of one client without their first axis, those of several as they are.

        Taken off once and not at every step; ``vmap_clients`` would do the same inside the program.
        """
        return {n: t[0] for n, t in leaves.items()} if self._alone else leaves


class Recorded(Program):
    """A program on buffers of its own whose step is recorded by ``record`` and then replayed.

    ``record(fn)`` runs ``fn`` once under recording and returns what replays it.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: Optimizer,
        train: tuple[str, ...],
        *parts: Params,
        record: Callable[[Play], Play],
    ) -> None:
        super().__init__(loss, optimizer, train, *(_own(part) for part in parts))
        self._record: Callable[[Play], Play] | None = record
        self._replay: Play | None = None
        self._batch: Params = {}
        self._said: Tensor | None = None
        self._taken = 0

    def begin(self, leaves: Params, context: Params, common: Params) -> None:
        """Start over from other leaves, with an optimiser that remembers nothing."""
        bare = self._bare(leaves), self._bare(context), common
        given = zip((self.leaves, self.context, self.common), bare, strict=True)
        with torch.no_grad():
            for mine, theirs in given:
                for name, buffer in mine.items():
                    buffer.copy_(theirs[name])
            for memory in self.optimizer.state.values() if self.optimizer else ():
                for tensor in memory.values():
                    if isinstance(tensor, Tensor):
                        tensor.zero_()

    def step(self, batch: Params) -> Tensor:
        """Take one step; the first few are eager, then it is recorded, then replayed."""
        if self._taken < WARM_UP or self._record is None:
            self._taken += 1
            return super().step(batch)
        if not self._batch:
            self._batch = _own(batch)
        for name, buffer in self._batch.items():
            buffer.copy_(batch[name])
        if self._replay is None:
            self._replay = self._recorded()
        if self._replay is None:
            return super().step(batch)
        self._replay()
        assert self._said is not None
        return self._said.clone()

    def _recorded(self) -> Play | None:
        def once() -> None:
            self._said = Program.step(self, self._batch)

        assert self._record is not None
        try:
            return self._record(once)
        except RuntimeError as error:
            self._record = None
            warnings.warn(f"steps run eagerly, as recording failed: {error}", stacklevel=2)
            return None


def program(
    fed: Federation,
    key: Hashable,
    loss: Loss,
    optimizer: Optimizer,
    train: tuple[str, ...],
    *parts: Params,
) -> Program:
    """Return the program of a cohort: on a GPU the recorded one of its ``key`` and shapes.

    ``parts`` are leaves, context and common, as for ``Program``.
    """
    if fed.device.type != "cuda" or optimizer.name not in RECORDABLE:
        return Program(loss, optimizer, train, *parts)
    shapes = tuple((n, t.shape, t.dtype) for part in parts for n, t in part.items())
    known = _kept.setdefault(fed, {})
    if (key, shapes) not in known:
        known[key, shapes] = Recorded(loss, optimizer, train, *parts, record=cuda_graph)
    made = known[key, shapes]
    made.begin(*parts)
    return made


def cuda_graph(fn: Play) -> Play:
    """Record the kernels that ``fn`` launches, without running them; return what replays them."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def _own(leaves: Params) -> Params:
    return {n: t.detach().clone(memory_format=torch.preserve_format) for n, t in leaves.items()}


def _trainable(t: Tensor) -> Tensor:
    """Copy a leaf, in the layout in which its convolutions run fastest."""
    if t.ndim >= 5:
        t = t.movedim(-3, -1).contiguous().movedim(-1, -3)
    return t.detach().clone(memory_format=torch.preserve_format)
