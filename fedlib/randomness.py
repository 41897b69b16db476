"""Random generators, keyed by (seed, purpose, where); no global generator is used.

The draws of a client depend on its id, the round and the seed. They do not depend on its position
in the cohort, on how many clients share one program, or on the device.
"""

from typing import Any

import numpy as np

# The index of a purpose is part of its key, so new ones must be appended.
PURPOSES = (
    "model", "cohort", "batches", "noise", "explore", "search", "server", "presence", "privacy",
)  # fmt: skip


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Return a NumPy generator for one purpose, e.g. ``generator(seed, "batches", round, client)``.

    An additional last 0 gives the same generator. So a purpose must always use the same number of
    integers, or one more that is not 0, as "explore" does for its second draw.

    Args:
        seed: the seed of the experiment.
        purpose: one of ``PURPOSES``.
        where: integers such as the round and the id of a client.
    """
    return np.random.default_rng(_sequence(seed, purpose, where))


def torch_seed(seed: int, purpose: str, *where: int) -> int:
    """Return a 63-bit seed for a torch generator, e.g. for the initial parameters of a model.

    Args:
        seed, purpose, where: as for ``generator``.
    """
    return int(_sequence(seed, purpose, where).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: str, where: Any) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, 1 + PURPOSES.index(purpose), *where])
