"""Who takes part in a round: drawn by (seed, round, client id), never by a client's row."""

import math
from typing import Annotated, Any

import numpy as np

from fedlib.federation import Federation
from fedlib.partition import whole_part
from fedlib.randomness import generator
from fedlib.values import NonNegativeInt, short_repr, value


@value
class Selection:
    """How many clients take part in a round, and which of them: a value for ``cohort``.

    Args:
        size: clients per round, or a fraction of the federation's members as a float.
        weighted: whether a client is drawn in proportion to its training examples N_s; else all
            are drawn alike. Always without replacement. The weights of the average stay those of
            the algorithm, so that large clients count twice: in the draw and in the average.
        available: share of the rounds in which a client can be reached at all. With fewer than
            ``size`` there, these take part; with none, one client does.
        period: rounds of a cycle, a day for one, in which a client is there for the share
            ``available`` in one stretch, which begins at a place of its own; 0: a coin per round.
        dropout: share of the drawn clients whose message never comes. They are left out, as if
            they had not been drawn, and the bytes sent to them are not counted; one stays at least.

    >>> Experiment(tiny.task, FedAvg(), rounds=2, cohort=Selection(2, dropout=0.1)).cohort.size
    2

    One's own rule is a value that inherits from this one and overrides ``pick``.

    Source: McMahan et al., AISTATS 2017 (uniform); Li et al., On the convergence of FedAvg on
    non-IID data, ICLR 2020 (weighted: its scheme I draws with replacement); Bonawitz et al.,
    Towards federated learning at scale, MLSys 2019 (availability by the time of day, dropouts).
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
        """Return the rows of the clients that take part in a round, in the order drawn."""
        clients = np.argsort(fed.ids, kind="stable")
        if fed.participants is not None:
            clients = clients[np.isin(clients, fed.participants)]
        size = cohort_size(self.size, len(clients))
        there = self._there(fed.ids[clients], seed, round)
        drawn = self.pick(fed, clients[there], size, round, generator(seed, "cohort", round))
        drawn = self._require_rows(drawn, clients[there])
        if not self.dropout:
            return drawn
        luck = np.array([_coin(seed, round, i, 1) for i in fed.ids[drawn].tolist()])
        return drawn[(luck >= self.dropout) | (luck == luck.max())]

    def pick(
        self, fed: Federation, clients: np.ndarray, size: int, round: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return ``size`` of the ``clients`` that are there, or all if they are fewer."""
        p = None
        if self.weighted:
            n = np.asarray(fed.train.sizes, dtype=float)[clients]
            p, size = n / n.sum(), min(size, int((n > 0).sum()))
        return clients[rng.choice(len(clients), min(size, len(clients)), replace=False, p=p)]

    def _require_rows(self, drawn: Any, clients: np.ndarray) -> np.ndarray:
        """Return what was picked; ValueError unless it is some of the rows, each once."""
        picked, once = np.asarray(drawn), 0
        if picked.ndim == 1 and picked.dtype.kind in "iu" and np.isin(picked, clients).all():
            once = len(np.unique(picked))
        if not once or once < len(picked):
            need = "must return some of its `clients`, each once, and one at least"
            raise ValueError(f"{type(self).__name__}.pick {need}, got {short_repr(drawn)}")
        return picked

    def _there(self, ids: np.ndarray, seed: int, round: int) -> np.ndarray:
        """Return which clients can be reached, bool ``[clients]``: one of them at least."""
        if self.available == 1:
            return np.ones(len(ids), dtype=bool)
        if self.period:
            starts = np.array([_coin(seed, 0, i, 2) for i in ids.tolist()])
            luck = (round / self.period + starts) % 1
        else:
            luck = np.array([_coin(seed, round, i, 0) for i in ids.tolist()])
        return (luck < self.available) | (luck == luck.min())


def cohort_size(cohort: int | float, clients: int) -> int:
    """Return the number of clients per round; ValueError if it is not between 1 and
    ``num_clients``.

    Of a fraction C it is ceil(C K), as 003 has it (algorithm 1, line 3): 6 of 182 for 0.03.
    """
    size: float = cohort
    if isinstance(cohort, float) and math.isfinite(cohort):
        # Rounding leaves products slightly off what is meant: -whole_part(-n) is that ceiling.
        size = max(1, -whole_part(-cohort * clients))
    if not 1 <= size <= clients or cohort <= 0:
        raise ValueError(f"a cohort of {cohort} does not fit {clients} clients; use 1 to {clients}")
    return int(size)


def _coin(seed: int, round: int, client: int, which: int) -> float:
    return float(generator(seed, "presence", round, client, which).random())
