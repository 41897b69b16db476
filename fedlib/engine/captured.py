"""On a GPU, the training step of a cohort as one CUDA graph: captured once, replayed at every step.

A step of a small network consists of some hundred kernels, whose launches take longer than their
arithmetic. A CUDA graph launches all of them at once: the gathering of the mini-batch, forward and
backward pass, and the optimiser. It reads and writes fixed addresses, so that everything that
differs between rounds is copied into buffers before the first step.

The environment variable FEDLIB_GRAPHS=1 turns it on. A phase is captured when its shapes appear for
the second time in a process. Until then it is trained step by step. This is also done on a CPU,
with optimisers other than SGD, Adam and AdamW, and if a capture has failed, which a warning
reports.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from fedlib import processor
from fedlib.engine.batches import Plan
from fedlib.engine.program import Program
from fedlib.engine.protocol import Algorithm, Cohort, Phase

WARM_UP = 3  # steps before the capture: they allocate what all later ones reuse
KEPT = 8  # graphs at a time; each holds the memory of its buffers and of one step
PARTS = ("clients", "params", "context", "common", "precomputed")  # what a step reads of a cohort
Make = Callable[[Cohort], Program]
Take = Callable[[Program, Cohort, Any], Iterator[Tensor]]
SEEN, FAILED = "seen once", "cannot be captured"
_graphs: "OrderedDict[Any, Captured | str]" = OrderedDict()


def captured(
    algorithm: Algorithm,
    cohort: Cohort,
    phase: Phase,
    plan: Plan,
    noise: int,
    make: Make,
    take: Take,
) -> "Captured | None":
    """Return the graph of a phase with the values of a round, or None to train step by step.

    Args:
        algorithm, cohort, phase, plan: what is trained; of the phase the optimiser of the round.
        noise: random numbers per example of a step.
        make: a function of a cohort that returns its ``Program``.
        take: a function ``(program, cohort, plan)`` that yields the losses of each step.
    """
    if not _wanted(cohort, phase):
        return None
    shapes = tuple((t.shape, t.dtype) for t in _tensors(cohort))
    steps, names = 1 << max(2, (plan.steps - 1).bit_length()), tuple(cohort.params)
    key = id(algorithm), id(cohort.fed), phase, plan.positions.shape[2], steps, names, shapes
    found = _graphs.pop(key, None)
    if found == SEEN:
        try:
            found = Captured(cohort, plan, steps, noise, make, take)
        except Exception as error:  # an error of the loss itself is raised again, step by step
            found, name = FAILED, type(algorithm).__name__
            warnings.warn(f"{name} trains without a CUDA graph: {error}", stacklevel=2)
    _graphs[key] = found or SEEN
    while len(_graphs) > KEPT:
        _graphs.popitem(last=False)
    if not isinstance(found, Captured):
        return None
    found.load(cohort, plan)
    return found


class Captured:
    """The steps of a phase with their buffers; arguments as for ``captured``.

    Attributes:
        program: the program that is trained, whose parameters are in buffers.
    """

    def __init__(
        self, cohort: Cohort, plan: Plan, steps: int, noise: int, make: Make, take: Take
    ) -> None:
        clients, wide, device = len(plan.ids), plan.positions.shape[2], cohort.clients.device
        parts = {n: tree_map_only(Tensor, torch.clone, getattr(cohort, n)) for n in PARTS}
        self.cohort = Cohort(cohort.fed, loss=cohort.loss, **parts)
        self.positions = torch.zeros(clients, steps, wide, dtype=torch.int64, device=device)
        self.counts = torch.zeros(clients, steps, dtype=torch.int64, device=device)
        self.noise = torch.zeros(clients, wide, noise, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.program = make(self.cohort)
        self.losses = torch.zeros(clients, device=device)
        self._take, self._ids = take, plan.ids
        self.load(cohort, plan)
        self._replay = cuda_graph(self._step)

    def load(self, cohort: Cohort, plan: Plan) -> None:
        """Copy the values of a round into the buffers, and begin anew."""
        for buffer, now in zip(_tensors(self.cohort), _tensors(cohort), strict=True):
            buffer.copy_(now)
        for buffer, drawn in ((self.positions, plan.positions), (self.counts, plan.counts)):
            buffer[:, : plan.steps].copy_(torch.as_tensor(drawn))
        self.at.zero_()
        self.program.restart(cohort.params)

    def steps(self, plan: Plan) -> Iterator[Tensor]:
        """Take the steps of a plan; yield the losses before each, ``[clients]``."""
        numbers = self.noise.shape[2]
        noise: Iterator[Any] = plan.noise(numbers) if numbers else repeat(None, plan.steps)
        for drawn in noise:
            if drawn is not None:
                self.noise.copy_(torch.as_tensor(drawn))
            self._replay()
            yield self.losses.clone()

    def _step(self) -> None:
        """Take the step whose number is in a buffer; nothing here comes from the host."""
        positions, counts = (t.index_select(1, self.at) for t in (self.positions, self.counts))
        now = _Now(positions, counts, self._ids, self.noise)
        self.losses.copy_(next(self._take(self.program, self.cohort, now)))
        self.at.add_(1).remainder_(self.counts.shape[1])


@dataclass(frozen=True, eq=False)
class _Now:
    """The plan of one step, as ``Plan``, whose values lie on the GPU."""

    positions: Tensor
    counts: Tensor
    ids: np.ndarray
    drawn: Tensor

    def noise(self, numbers: int) -> Iterator[Tensor]:
        yield self.drawn


def cuda_graph(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a function of fixed buffers; return a function that replays its kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _wanted(cohort: Cohort, phase: Phase) -> bool:
    """Return whether the steps of a phase are to be captured."""
    asked = processor.captures_graphs() and cohort.clients.is_cuda
    return asked and phase.optimizer.is_functional


def _tensors(cohort: Cohort) -> list[Tensor]:
    """Return what a step reads of a cohort, in one order."""
    return tree_leaves([getattr(cohort, n) for n in PARTS])
