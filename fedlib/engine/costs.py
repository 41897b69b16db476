"""What everything costs: how many clients share a program, how much is held, what is asked at once.

No number but ``MOST`` changes a result other than by rounding. They were measured (``make bench``).
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedlib.engine.protocol import Phase, State
from fedlib.federation import Federation
from fedlib.models import Params

# What a CPU core keeps close: a cohort whose weights exceed it waits for memory at every step.
CACHE_BYTES = 2**22
READERS = 32  # clients whose recurrent nets read their texts together
WAITING_BYTES = 2**26  # weights of clients that wait for their next phase
BLOCK = 512  # examples per forward pass of an evaluation
BUDGET = 2**26  # numbers that one batched prediction may gather
READ = 2**14  # texts that recurrent nets of several clients read at once
MOST = 1000  # test examples on which every client is asked: part of what is measured
UNEQUAL = 64  # times the mean size, above which a client is nobody's company
AT_ONCE = 128  # examples per forward pass of frozen leaves, of each of so many clients:
TOGETHER = 16


def chunk_of(fed: Federation, chunk: int | None, numbers: int = 0) -> int:
    """Return how many clients share one program: by default what is fastest on the device.

    All of the cohort on a GPU; on a CPU as many as its cache holds, convolutions one at a time, and
    recurrent nets ``READERS`` at a time, whose many small steps cost more than their weights.
    ``numbers`` is how many numbers a client's leaves have, by default the net's.
    """
    if chunk is not None:
        if chunk < 1:
            raise ValueError(f"chunk must be >= 1, got {chunk}")
        if chunk > 1 and (why := fed.net.dry_run.unbatchable):
            raise ValueError(f"clients cannot share a program: leave chunk out, or give 1. {why}")
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
    """Return how many clients share the program of one phase, which trains ``moving``.

    Where ``vectors`` take the place of the examples no convolution is left, however many the model
    has: then as many as a CPU's cache holds of what moves.
    """
    if chunk is not None or fed.device.type != "cpu" or not vectors:
        return usual
    size = sum(t[0].numel() for t in moving.values())
    return max(usual, min(READERS, CACHE_BYTES // (4 * max(size, 1))))


def cohort_width(
    fed: Federation, chunk: int | None, usual: int, state: State, phases: Sequence[Phase]
) -> int:
    """Return how many clients play their phases side by side, a multiple of the usual chunk.

    More than that only where some phase trains no convolution, and as long as the weights of all
    are few: they wait in memory for the next phase.
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
    """Return how many numbers one client's leaves have: what ``chunk_of`` asks for."""
    mine = sum(t[0].numel() for t in state.client_params.values())
    return mine + sum(t.numel() for t in state.server_params.values())


def prediction_width(fed: Federation, code: Params, examples: int) -> int:
    """Return how many clients predict in one program: as many as the budget allows.

    One at a time where a whole personal network would run on a CPU (grouped convolutions).
    """
    if "x" in code and not fed.net.batchable(fed.device):
        return 1
    if "x" in code and fed.net.is_recurrent:
        return max(1, READ // max(examples, 1))
    numbers = sum(t[0].numel() for t in code.values()) * max(examples, 1)
    return int(np.clip(BUDGET // max(numbers, 1), 1, 4096))


def test_stride(code: Params, examples: int, clients: int) -> int:
    """Return the step from one test example that a new client is given predictions for to the next.

    All of them, or about ``MOST`` where every client's own network would read them.
    """
    return max(1, examples // MOST) if "x" in code and clients > 1 else 1


def groups(
    kinds: np.ndarray, sizes: np.ndarray, phases: Sequence[Phase], size: int
) -> Iterator[np.ndarray]:
    """Yield places of the cohort that share a program: of one kind, those with most steps first."""
    batch = next((p.batch_size for p in phases[:1]), None) or sizes.max(initial=1)
    steps = np.ceil(sizes / batch)
    for kind in np.unique(kinds):
        same = np.flatnonzero(kinds == kind)
        order = same[np.argsort(-steps[same], kind="stable")]
        yield from (order[some] for some in group_by_size(sizes[order], lambda width: size))


def group_by_size(sizes: np.ndarray, most: Callable[[int], int]) -> list[np.ndarray]:
    """Return the places of clients that are padded to one width together, in their order.

    As many at once as ``most`` says for the widest. Whoever has more than ``UNEQUAL`` times the
    mean is alone, so that what is padded stays in proportion to what is held.
    """
    rest, alone = (np.flatnonzero(oversized(sizes) == far) for far in (False, True))
    step = most(int(sizes[rest].max()))
    return [*alone[:, None], *np.split(rest, range(step, len(rest), step))]


def oversized(sizes: np.ndarray) -> np.ndarray:
    """Return which clients have more than ``UNEQUAL`` times the mean size, bool ``[clients]``."""
    return np.asarray(sizes * len(sizes) > UNEQUAL * sizes.sum(), bool)
