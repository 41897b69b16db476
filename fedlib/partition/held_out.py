"""What a client does not train on: twins from elsewhere, some of its own, what opted out."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedlib.partition import draws
from fedlib.partition.base import Request
from fedlib.partition.draws import Ints, Partition, examples
from fedlib.values import PositiveInt, Share, value


@dataclass(frozen=True, eq=False)
class Division:
    """The partitions "train", "validation" and "test" of one request, and where they point.

    origin: for each part the split that its positions index, "train", "test", or "merged", which
    is the training split followed by the test split.
    """

    parts: dict[str, Partition]
    origin: dict[str, str]


@value(kind="Mirrored")
class MatchedHoldout:
    """Validation and test examples from elsewhere, in the label shares that a client trains on.

    `pool` examples of the split `source` are set aside before the partition, class by class in
    proportion; every client mirrors its shares on `validation` of them and on `test` examples of
    the test split. source "train" deals the rest of the training split, source "test" all of it
    and mirrors tests on the rest of the test split. No example is in two kinds of parts, but
    clients may share validation and test examples. Source: 001 (docs/READINGS.md, A04).

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", IID(clients=4, size=50), MLP((8,)), held)
    >>> {name: int(part.sum(1)[0]) for name, part in task.counts(seed=0).items()}
    {'train': 50, 'validation': 20, 'test': 30}
    """

    pool: PositiveInt = 5000
    validation: PositiveInt = 50
    test: PositiveInt = 100
    source: Annotated[str, ("train", "test")] = "train"

    def divide(self, request: Request, train: Any, test: Any, classes: int, seed: int) -> Division:
        """The division of a request; see `divide`."""
        if not len(test.labels):
            instead = "use LocalHoldout, not MatchedHoldout"
            raise ValueError(f"there is no test split to mirror clients in; {instead}")
        ours = train if self.source == "train" else test
        rest, held = draws.holdout(ours.labels, self.pool, seed)
        dealt, tested = (rest, None) if self.source == "train" else (None, rest)
        mine = request.dealt_from(examples(train.labels, dealt, classes, train.columns), seed)
        shares = mine.shares(train.labels, classes)
        chosen = draws.matched(ours.labels, shares, size=self.validation, seed=seed, pool=held)
        last = draws.matched(test.labels, shares, size=self.test, seed=seed, pool=tested)
        parts = {"train": mine, "validation": chosen, "test": last}
        return Division(parts, {"train": "train", "validation": self.source, "test": "test"})


@value(kind="Own")
class LocalHoldout:
    """Validation and test examples from what a client was dealt.

    Of a client's n examples max(1, floor((1 - test) n)) are left after its test share, and of
    these the same rule with `validation` leaves its training part. So nobody is without training
    examples, and a client with very few may be without the others. merge: the request deals the
    training split followed by the test split, as PFLlib does; else the training split only. train:
    the share of every class of a client's training part that it keeps, rounded up, so that nobody
    loses a class; the rest is used by nobody. Validation and test parts stay as they are.

    ClassDirichlet draws the test shares as PFLlib does; 004 is
    ``LocalHoldout(test=0.25, merge=True)``.

    >>> held = LocalHoldout(validation=0.1, test=0.2)
    >>> task = Task("digits", IID(clients=4, size=100), MLP((8,)), held)
    >>> {name: int(part.sum(1)[0]) for name, part in task.counts(seed=0).items()}
    {'train': 72, 'validation': 8, 'test': 20}
    """

    test: Annotated[float, "(0, 1)"] = 0.25
    validation: Annotated[float, "[0, 1)"] = 0.1
    merge: bool = False
    train: Annotated[float, "(0, 1]"] = 1.0

    def divide(self, request: Request, train: Any, test: Any, classes: int, seed: int) -> Division:
        """The division of a request; see `divide`."""
        labels, columns = train.labels, dict(train.columns)
        if self.merge:
            labels = np.concatenate([labels, test.labels])
            both = columns.keys() & test.columns.keys()
            columns = {n: np.concatenate([columns[n], test.columns[n]]) for n in both}
        kept, tested = request.cut(examples(labels, None, classes, columns), seed, self.test)
        mine, chosen = draws.halves(kept, self.validation, seed, "own validation")
        if self.train < 1:
            mine = thinned(mine, labels, self.train, seed)
        parts = {"train": mine, "validation": chosen, "test": tested}
        return Division(parts, dict.fromkeys(parts, "merged" if self.merge else "train"))


def thinned(whole: Partition, labels: Ints, share: float, seed: int) -> Partition:
    """Each client's examples cut to ceil(share * n) of its n of every class, drawn at random.

    labels: [N], those that the partition's positions point at. Every client draws from a generator
    of its own.
    """
    generators = draws.generators_of(seed, "own train", np.arange(whole.clients))
    rank, of = draws.ranks(whole, labels, generators)
    return whole.only(rank < np.maximum(1, np.ceil(share * of - 1e-9)))  # 0.07 * 100 is above 7


def divide(
    request: Request, held_out: MatchedHoldout | LocalHoldout, train: Any, test: Any,
    classes: int, seed: int,
) -> Division:  # fmt: skip
    """Who trains, validates and tests on what: one partition each, with side information.

    train, test: the splits of a data set, with `labels` and `columns`. No validation or test
    example is in any client's training part, and no test example in any validation part.
    ValueError, with the numbers, for the impossible.
    """
    division = held_out.divide(request, train, test, classes, seed)
    parts = {part: request.side(rows, part, seed, classes) for part, rows in division.parts.items()}
    return Division(parts, division.origin)


@value
class OptOut:
    """The fraction ``clients`` of the clients keeps the fraction ``share`` of each class out.

    ``share`` 1 is a client that stays out of the federation altogether (001's q is ``clients``). Of
    M clients round(clients M) opt out, with floor(share n) of their n examples of a class. Who and
    what is drawn so that those who opt out at one fraction also do at every larger one.

    >>> from dataclasses import replace
    >>> fed = replace(tiny.task, opt_out=OptOut(clients=0.5, share=1.0)).build(seed=0)
    >>> int((fed.sizes == 0).sum()), fed.clients  # who takes no part has nothing to train on
    (3, 6)
    """

    clients: Share = 0.9
    share: Share = 1.0

    def stays_in(
        self, train: Partition, labels: Ints, seed: int, first: int = 0, population: int = 0
    ) -> NDArray[np.bool_]:
        """Return which examples of the training part take part, ``[examples]``.

        Its clients are those from ``first`` on, of a ``population`` (0: of these). ValueError if of
        all of these nobody has an example that does.
        """
        inside, population = np.ones(len(train.flat), bool), population or train.clients
        out = round(self.clients * population)
        away = draws.generator_of(seed, "opt out").permutation(population)[:out]
        who = first + np.arange(train.clients)
        opting = np.isin(who, away)
        theirs = opting[train.owners]
        generators = draws.generators_of(seed, "opt out examples", who[opting])
        some = Partition(train.flat[theirs], train.sizes[opting])
        rank, of = draws.ranks(some, labels, generators)
        inside[theirs] = rank >= np.floor(self.share * of + 1e-9)
        if population == train.clients and inside.size and not inside.any():
            raise ValueError(f"{self} leaves no example to the federation of {population:,}")
        return inside
