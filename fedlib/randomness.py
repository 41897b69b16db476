"""Where every random number comes from: (seed, purpose, where), never a global generator.

A client's draws depend on its own id, on the round and on the seed. They do not depend on its
place in the cohort, on how many clients share one program, or on the device.
"""

from typing import Any

import numpy as np

# A purpose's place is in all of its draws: a new one goes to the end.
PURPOSES = (
    "model", "cohort", "batches", "noise", "explore", "search", "server", "presence", "privacy",
)  # fmt: skip


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Return the generator of one purpose at one place, e.g. ``("batches", round, client)``.

    A last 0 more makes no other generator. So a purpose names its places by equally many numbers,
    or by one more that is not 0, as "explore" does for its second draw. The clients of
    ``NoisyFedMix`` draw as "server" with their id, and 0 is one: its server itself draws nothing.
    """
    return np.random.default_rng(_sequence(seed, purpose, where))


def torch_seed(seed: int, purpose: str, *where: int) -> int:
    """Return a 63-bit seed for torch's own generator, e.g. for the initial weights of a model."""
    return int(_sequence(seed, purpose, where).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, purpose: str, where: Any) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, 1 + PURPOSES.index(purpose), *where])
