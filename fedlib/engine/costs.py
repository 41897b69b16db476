"""Cost model: how many clients share a program, and how many examples one forward pass has.

Except for ``MOST``, these numbers change results by rounding only. They were measured with
``make bench``.
"""

from collections.abc import Callable, Iterator, Sequence

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
AT_ONCE = 128  # examples of a client per forward pass of frozen parameters, and
TOGETHER = 16  # clients in it


def chunk_of(fed: Federation, chunk: int | None, numbers: int = 0) -> int:
    """Return the number of clients that share one program.

    Args:
        fed: the federation.
        chunk: the number that the user gave, None for the fastest on the device.
        numbers: the number of elements of a client's parameters. Default: those of the network.

    Returns:
        ``chunk``, if given. On a GPU, all clients. On a CPU, as many as fit into its cache; one for
        convolutions; and ``READERS`` for recurrent networks, whose many small steps cost more than
        their weights.

    Raises:
        ValueError: if ``chunk`` is less than 1, or above 1 for a network that cannot be vectorised.
    """
    if chunk is not None:
        if chunk < 1:
            raise ValueError(f"chunk must be >= 1, got {chunk}")
        if chunk > 1 and (why := fed.net.dry_run.unbatchable):
            raise ValueError(f"clients cannot share a program: omit chunk, or set it to 1. {why}")
        return chunk
    if not fed.net.batchable(fed.device):
        return 1
    if fed.device.type != "cpu":
        return fed.num_clients
    if fed.net.is_recurrent:
        return READERS
    return max(1, CACHE_BYTES // (4 * (numbers or fed.net.parameters())))


def phase_width(
    fed: Federation, chunk: int | None, usual: int, moving: Params, vectors: bool
) -> int:
    """Return the number of clients that share the program of one phase.

    Args:
        fed: the federation.
        chunk: the number that the user gave, or None.
        usual: the default number.
        moving: the trained parameters, ``[clients, ...]``.
        vectors: whether precomputed features replace the examples. Then no convolution is
            evaluated, and as many clients share a program as a CPU's cache holds of their trained
            parameters.
    """
    if chunk is not None or fed.device.type != "cpu" or not vectors:
        return usual
    size = sum(t[0].numel() for t in moving.values())
    return max(usual, min(READERS, CACHE_BYTES // (4 * max(size, 1))))


def cohort_width(
    fed: Federation, chunk: int | None, usual: int, state: State, phases: Sequence[Phase]
) -> int:
    """Return the number of clients that advance phase by phase together, a multiple of ``usual``.

    It exceeds ``usual`` only if some phase trains no convolution and the parameters of all these
    clients are small, because they stay in memory until the next phase.

    Args:
        fed: the federation.
        chunk: the number of clients per program that the user gave, or None.
        usual: the default number.
        state: the state, with the shapes of the parameters.
        phases: the phases of the algorithm.
    """
    if chunk is not None or fed.device.type != "cpu":
        return usual
    shapes = {n: t.ndim for n, t in state.server_params.items()}
    shapes |= {n: t.ndim - 1 for n, t in state.client_params.items()}
    moving = [phase.trained_names(shapes, state.client_params) for phase in phases]
    if not any(names and max(shapes[n] for n in names) <= 2 for names in moving):
        return usual
    most = min(READERS, WAITING_BYTES // (4 * max(numbers(state), 1)))
    return usual * max(1, most // usual)


def numbers(state: State) -> int:
    """Return the number of elements of one client's parameters."""
    mine = sum(t[0].numel() for t in state.client_params.values())
    return mine + sum(t.numel() for t in state.server_params.values())


def prediction_width(fed: Federation, code: Params, examples: int) -> int:
    """Return the number of clients that predict in one program, limited by memory.

    It is one if each client evaluates a whole network with convolutions on a CPU.
    """
    if "x" in code and not fed.net.batchable(fed.device):
        return 1
    if "x" in code and fed.net.is_recurrent:
        return max(1, READ // max(examples, 1))
    numbers = sum(t[0].numel() for t in code.values()) * max(examples, 1)
    return int(np.clip(BUDGET // max(numbers, 1), 1, 4096))


def test_stride(code: Params, examples: int, clients: int) -> int:
    """Return the stride at which test examples are evaluated for a new client.

    It is 1, or the one that leaves about ``MOST`` examples if each client evaluates a network of
    its own.
    """
    return max(1, examples // MOST) if "x" in code and clients > 1 else 1


def groups(
    kinds: np.ndarray, sizes: np.ndarray, phases: Sequence[Phase], size: int
) -> Iterator[np.ndarray]:
    """Yield groups of the cohort that are trained together, as positions in the cohort.

    A group has clients of one kind. Clients with most steps come first.

    Args:
        kinds: the kind (shape of parameters) of each client, int64 ``[clients]``.
        sizes: their numbers of examples, int64 ``[clients]``.
        phases: the phases of the algorithm.
        size: the maximal number of clients in a group.
    """
    batch = next((p.batch_size for p in phases[:1]), None) or sizes.max(initial=1)
    steps = np.ceil(sizes / batch)
    for kind in np.unique(kinds):
        same = np.flatnonzero(kinds == kind)
        order = same[np.argsort(-steps[same], kind="stable")]
        yield from (order[some] for some in group_by_size(sizes[order], lambda width: size))


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
