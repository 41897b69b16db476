"""Which clients take part in a round: drawn by (seed, round, client id)."""

import math
from typing import Annotated

import numpy as np

from fedlib.federation import Federation
from fedlib.partition import whole_part
from fedlib.randomness import generator
from fedlib.values import NonNegativeInt, short_repr, value


@value
class Selection:
    """How many clients take part in a round, and how they are drawn: a value for ``cohort``.

    To use another rule, inherit from this class and override ``pick``.

    Args:
        size: clients per round, or a fraction of the participating clients as a float. Default: 10.
        weighted: whether clients are drawn with probability proportional to their number of
            training examples, instead of uniformly. Draws are without replacement. The weights of
            the average do not change, so that large clients count twice. Default: False.
        available: fraction of the rounds in which a client is available, in (0, 1]. If fewer than
            ``size`` clients are available, all of these take part; if none is, one client does.
            Default: 1.
        period: length of a cycle in rounds, such as a day. A client is available for the fraction
            ``available`` of a cycle, in one stretch that starts at a random time of its own. With
            0, availability is drawn independently per round. Default: 0.
        dropout: probability that a selected client fails to send its message, in [0, 1). Such
            clients are treated as if they had not been selected, and the bytes sent to them are not
            counted. At least one client remains. Default: 0.

    Reference: McMahan et al., AISTATS 2017 (uniform); Li et al., On the convergence of FedAvg on
    non-IID data, ICLR 2020 (weighted: its scheme I draws with replacement); Bonawitz et al.,
    Towards federated learning at scale, MLSys 2019 (availability by the time of day, dropouts).

    >>> from fedrun import Experiment, tiny
    >>> Experiment(tiny.task, FedAvg(), rounds=2, cohort=Selection(2, dropout=0.1)).cohort.size
    2
    """

    size: int | float = 10
    weighted: bool = False
    available: Annotated[float, "(0, 1]"] = 1.0
    period: NonNegativeInt = 0
    dropout: Annotated[float, "[0, 1)"] = 0.0

    def check(self) -> None:
        whole = isinstance(self.size, int)
        if not (self.size >= 1 if whole else 0 < self.size <= 1):
            need = "the size of a cohort must be >= 1 or a fraction in (0, 1]"
            raise ValueError(f"{need}, got {self.size}")

    def choose(self, fed: Federation, seed: int, round: int) -> np.ndarray:
        """Return the indices of the clients that take part in a round, in the order drawn.

        Args:
            fed: the federation.
            seed: the experiment's seed.
            round: the number of the round.
        """
        clients = np.argsort(fed.ids, kind="stable")
        if fed.participants is not None:
            clients = clients[np.isin(clients, fed.participants)]
        size = cohort_size(self.size, len(clients))
        clients = clients[self._available(fed.ids[clients], seed, round)]
        drawn = np.asarray(self.pick(fed, clients, size, round, generator(seed, "cohort", round)))
        whole = drawn.ndim == 1 and drawn.dtype.kind in "iu"
        if not (whole and 0 < len(drawn) == len(np.intersect1d(drawn, clients))):
            need = "must return a non-empty subset of `clients`, each once"
            raise ValueError(f"{type(self).__name__}.pick {need}, got {short_repr(drawn)}")
        luck = _uniform(fed.ids[drawn], seed, round, 1) if self.dropout else np.ones(len(drawn))
        return drawn[(luck >= self.dropout) | (luck == luck.max())]

    def pick(
        self, fed: Federation, clients: np.ndarray, size: int, round: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return ``size`` of the available clients, or all if there are fewer.

        Called by ``choose``, once per round.

        Args:
            fed: the federation.
            clients: indices of the available clients, int64 ``[clients]``.
            size: the number of clients to draw.
            round: the number of the round.
            rng: a generator for this round.

        Default: uniform, or weighted by the number of training examples.
        """
        p = None
        if self.weighted:
            n = np.asarray(fed.train.sizes, dtype=float)[clients]
            if n.any():  # otherwise no available client has examples
                p, size = n / n.sum(), min(size, int((n > 0).sum()))
        return clients[rng.choice(len(clients), min(size, len(clients)), replace=False, p=p)]

    def _available(self, ids: np.ndarray, seed: int, round: int) -> np.ndarray:
        """Return which clients are available, bool ``[clients]``; at least one is."""
        if self.available == 1:
            return np.ones(len(ids), dtype=bool)
        luck = _uniform(ids, seed, 0 if self.period else round, 2 if self.period else 0)
        if self.period:
            luck = (round / self.period + luck) % 1
        return (luck < self.available) | (luck == luck.min())


def cohort_size(cohort: int | float, clients: int) -> int:
    """Return the number of clients per round.

    Args:
        cohort: the number itself, or a fraction C of K clients as a float, which gives ceil(C K) as
            in Isaksson et al. (2022, algorithm 1, line 3): 6 of 182 clients for 0.03.
        clients: the number K of clients.

    Raises:
        ValueError: if the result is not between 1 and K.
    """
    size: float = cohort
    if isinstance(cohort, float) and math.isfinite(cohort):
        # -whole_part(-n) is the ceiling up to rounding errors of the product.
        size = max(1, -whole_part(-cohort * clients))
    if not 1 <= size <= clients or cohort <= 0:
        raise ValueError(f"a cohort of {cohort} does not fit {clients} clients; use 1 to {clients}")
    return int(size)


def _uniform(ids: np.ndarray, seed: int, round: int, which: int) -> np.ndarray:
    """Return a random number in [0, 1) for each client, ``[clients]``."""
    return np.array([generator(seed, "presence", round, i, which).random() for i in ids.tolist()])
