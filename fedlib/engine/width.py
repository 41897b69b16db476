"""How many clients share a program. Except for ``MOST``, this changes results by rounding only.

The numbers were measured with ``make bench``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlib.engine.protocol import Phase, State
from fedlib.federation import Federation
from fedlib.models import Params

# Cache per CPU core: larger weights are read from memory at every step.
CACHE_BYTES = 2**22
READERS = 32  # clients whose recurrent networks share a program
WAITING_BYTES = 2**26  # memory for the weights of clients between two phases
BLOCK = 512  # examples per forward pass of an evaluation
BUDGET = 2**26  # elements that one batched prediction may gather
READ = 2**14  # texts per forward pass of the recurrent networks of several clients
MOST = 1000  # test examples that every client predicts; changes what is measured
UNEQUAL = 64  # times the mean size, above which a client is a group of its own
# Examples of a client, and clients, per forward pass of parameters that a phase does not train.
AT_ONCE, TOGETHER = 128, 16


@dataclass(frozen=True, eq=False)
class Width:
    """The number of clients that share one program, in training and in predictions.

    Args:
        fed: the federation.
        state: a state, with the shapes of a client's parameters.
        chunk: the number that the user gave, which applies to all training; None for the fastest
            numbers on the device. Default: None.
    """

    fed: Federation
    state: State
    chunk: int | None = None

    @cached_property
    def program(self) -> int:
        """The number for the program of a training step.

        It is ``chunk``, if given. On a GPU it is the number of all clients. On a CPU, as many
        clients share a program as fit into its cache; one for convolutions; and ``READERS`` for
        recurrent networks, whose many small steps cost more than their weights.

        Raises:
            ValueError: if ``chunk`` is less than 1, or above 1 for a network that cannot be
                vectorised.
        """
        net, device = self.fed.net, self.fed.device
        if self.chunk is not None:
            if self.chunk < 1:
                raise ValueError(f"chunk must be >= 1, got {self.chunk}")
            if self.chunk > 1 and (why := net.dry_run.unbatchable):
                raise ValueError(
                    f"clients cannot share a program: omit chunk, or set it to 1. {why}"
                )
            return self.chunk
        if not net.batchable(device):
            return 1
        if device.type != "cpu":
            return self.fed.num_clients
        return READERS if net.is_recurrent else max(1, _fitting(CACHE_BYTES, self.numbers))

    def of_phase(self, trained: Params, vectors: bool) -> int:
        """Return the number for one phase.

        Args:
            trained: the trained parameters, ``[clients, ...]``.
            vectors: whether precomputed features replace the examples. Then no convolution is
                evaluated, and as many clients share a program as a CPU's cache holds of their
                trained parameters.
        """
        if not self._is_free or not vectors:
            return self.program
        fitting = _fitting(CACHE_BYTES, sum(t[0].numel() for t in trained.values()))
        return max(self.program, min(READERS, fitting))

    def of_group(self, phases: Sequence[Phase]) -> int:
        """Return the number of clients that advance phase by phase, a multiple of ``program``.

        It exceeds ``program`` only if some phase trains no convolution and the parameters of all
        these clients are small, because they stay in memory until the next phase.
        """
        local = self.state.client_params
        axes = {n: t.ndim for n, t in self.state.server_params.items()}
        axes |= {n: t.ndim - 1 for n, t in local.items()}
        trained = [phase.trained_names(axes, local) for phase in phases]
        if not self._is_free or not any(n and max(axes[i] for i in n) <= 2 for n in trained):
            return self.program
        fitting = min(READERS, _fitting(WAITING_BYTES, self.numbers))
        return self.program * max(1, fitting // self.program)

    def of_prediction(self, code: Params, examples: int) -> int:
        """Return the number for predictions of ``examples`` examples each, limited by memory.

        It is one if each client evaluates a whole network with convolutions on a CPU.
        """
        if "x" in code and not self.fed.net.batchable(self.fed.device):
            return 1
        if "x" in code and self.fed.net.is_recurrent:
            return max(1, READ // max(examples, 1))
        numbers = sum(t[0].numel() for t in code.values()) * max(examples, 1)
        return int(np.clip(BUDGET // max(numbers, 1), 1, 4096))

    @property
    def _is_free(self) -> bool:
        """Whether the number may differ between phases."""
        return self.chunk is None and self.fed.device.type == "cpu"

    @cached_property
    def numbers(self) -> int:
        """The number of elements of one client's parameters."""
        own = sum(t[0].numel() for t in self.state.client_params.values())
        return own + sum(t.numel() for t in self.state.server_params.values())


def _fitting(memory: int, numbers: int) -> int:
    """Return how many times so many numbers in float32 fit into a memory in bytes."""
    return memory // (4 * max(numbers, 1))


def group_by_size(sizes: np.ndarray, most: Callable[[int], int]) -> list[np.ndarray]:
    """Return groups of clients that are padded to a common width, as positions in their order.

    A client with more than ``UNEQUAL`` times the mean size is a group of its own, so that the
    padding stays in proportion to the data.

    Args:
        sizes: numbers of examples, int64 ``[clients]``.
        most: returns the number of clients per group, given the largest size.
    """
    rest, alone = (np.flatnonzero(oversized(sizes) == far) for far in (False, True))
    step = most(int(sizes[rest].max()))
    return [*alone[:, None], *np.split(rest, range(step, len(rest), step))]


def oversized(sizes: np.ndarray) -> np.ndarray:
    """Return which clients exceed ``UNEQUAL`` times the mean size, bool ``[clients]``."""
    return np.asarray(sizes * len(sizes) > UNEQUAL * sizes.sum(), bool)
