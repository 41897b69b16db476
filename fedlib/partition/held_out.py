"""What a client does not train on: twins from elsewhere, some of its own, what opted out."""

import warnings
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedlib.partition import draws
from fedlib.partition.draws import Ints, LabelledExamples, Partition, examples
from fedlib.partition.partitioner import Partitioner
from fedlib.values import PositiveInt, Share, value

PARTS = ("train", "validation", "test")
GROUP = "which group is it of"


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
    clients may share validation and test examples, and these are of anybody (`HoldoutByColumn`
    tests clients on their own). group: a column whose values are kept together, such as whose
    records examples are: `pool` is then met as nearly as whole groups do, class shares aside, and
    of the test split nothing is used of a group that the training split has.
    Source: 001 (docs/READINGS.md, A04).

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", IID(clients=4, size=50), MLP((8,)), held)
    >>> {name: int(part.sum(1)[0]) for name, part in task.counts(seed=0).items()}
    {'train': 50, 'validation': 20, 'test': 30}
    """

    pool: PositiveInt = 5000
    validation: PositiveInt = 50
    test: PositiveInt = 100
    source: Annotated[str, ("train", "test")] = "train"
    group: str | None = None

    def divide(
        self, request: Partitioner, train: Any, test: Any, classes: int, seed: int
    ) -> Division:
        """The division of a request; see `divide`."""
        if not len(test.labels):
            instead = "use LocalHoldout, not MatchedHoldout"
            raise ValueError(f"there is no test split to mirror clients in; {instead}")
        ours = train if self.source == "train" else test
        (rest, held), apart = self._set_aside(train, test, seed)
        dealt, tested = (rest, apart) if self.source == "train" else (None, rest)
        mine = request.checked(examples(train.labels, dealt, classes, train.columns), seed)
        shares = mine.shares(train.labels, classes)
        chosen = draws.matched(ours.labels, shares, size=self.validation, seed=seed, pool=held)
        last = draws.matched(test.labels, shares, size=self.test, seed=seed, pool=tested)
        parts = {"train": mine, "validation": chosen, "test": last}
        return Division(parts, {"train": "train", "validation": self.source, "test": "test"})

    def _set_aside(self, train: Any, test: Any, seed: int) -> tuple[tuple[Ints, Ints], Ints | None]:
        """What is left of a split and the pool; and the examples for tests, None for all."""
        ours = train if self.source == "train" else test
        if self.group is None:
            return draws.holdout(ours.labels, self.pool, seed), None
        known, theirs = _numbered(self.group, "which group is it of", train, test)
        apart = np.flatnonzero(~np.isin(theirs, known))
        if not len(apart):
            instead = f"use HoldoutByColumn(group={self.group!r}, merge=True)"
            raise ValueError(f"every {self.group!r} of the test split is trained on; {instead}")
        rows, groups = (apart, theirs) if ours is test else (np.arange(len(known)), known)
        draws.require_at_least(
            f"examples to set {self.pool:,} aside and keep one", self.pool + 1, len(rows)
        )
        whole, generator = (
            Partition(rows, np.array([len(rows)])),
            draws.generator_of(seed, "groups"),
        )
        kept, held = draws.cut_groups(whole, self.pool / len(rows), groups, None, [generator])
        return (kept.flat, held.flat), apart


@value(kind="Own")
class LocalHoldout:
    """Validation and test examples from what a client was dealt.

    Of a client's n examples max(1, floor((1 - test) n)) are left after its test share, and of
    these the same rule with `validation` leaves its training part. So nobody is without training
    examples, and a client with very few may be without the others. merge: the request deals the
    training split followed by the test split, as PFLlib does; else the training split only, and the
    test split is not used (`HoldoutByColumn` gives its examples to their owners). train: the share
    of every class of a client's training part that it keeps, rounded up, so that nobody loses a
    class; the rest is used by nobody. Validation and test parts stay as they are.

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

    def divide(
        self, request: Partitioner, train: Any, test: Any, classes: int, seed: int
    ) -> Division:
        """The division of a request; see `divide`."""
        labels, columns = train.labels, dict(train.columns)
        if self.merge:
            labels = np.concatenate([labels, test.labels])
            both = columns.keys() & test.columns.keys()
            columns = {n: np.concatenate([columns[n], test.columns[n]]) for n in both}
        mine, chosen, tested = self._cut(request, examples(labels, None, classes, columns), seed)
        if self.train < 1:
            mine = thinned(mine, labels, self.train, seed)
        parts = {"train": mine, "validation": chosen, "test": tested}
        return Division(parts, dict.fromkeys(parts, "merged" if self.merge else "train"))

    def _cut(
        self, request: Partitioner, pool: LabelledExamples, seed: int
    ) -> tuple[Partition, ...]:
        """The training, validation and test parts of what the request deals."""
        kept, tested = request.split_off(pool, seed, self.test)
        return *draws.halves(kept, self.validation, seed, "own validation"), tested


@value
class HoldoutByColumn(LocalHoldout):
    """Validation and test examples of a client's own, told by columns of the data.

    It is a `LocalHoldout` that goes by columns, one or more, where that one draws single examples:

    - group: examples with the same value are in one part, whichever clients have them, such as the
      records of a patient. Parts are as near to their shares as whole groups come.
    - time: numbers, or dates as 2021-04-03. A client is tested on its latest examples, and
      validated on the latest before these; what is of one time is in one part. With `group` a group
      is as late as the first of its examples at the client.
    - owner: the tests are the examples of the test split, each at the client that trains on
      examples with its value in this column, as in LEAF; where several do, at one of them, drawn in
      proportion to how many they have. The share `test` has no meaning then.
    - part: says "train", "validation" or "test" of each example. Where it says no "validation", or
      no "test", of any, the share of that name is held out.

    test, validation, merge, train: as for `LocalHoldout`. A client with two groups, or times, has
    tests; one with a single one trains on it.

    >>> rng = np.random.default_rng(0)
    >>> patient = np.repeat(np.arange(30), 4)
    >>> columns = {"hospital": patient % 3, "patient": patient}
    >>> _ = data.add("stays", (rng.normal(size=(120, 5)), rng.integers(2, size=120), columns))
    >>> held = HoldoutByColumn(test=0.2, validation=0.1, group="patient")
    >>> task = Task("stays", NaturalPartition("hospital"), MLP((8,)), held)
    >>> {name: part.sum(1).tolist() for name, part in task.counts(seed=0).items()}
    {'train': [28, 28, 28], 'validation': [4, 4, 4], 'test': [8, 8, 8]}
    """

    group: str | None = None
    time: str | None = None
    owner: str | None = None
    part: str | None = None

    def check(self) -> None:
        if self.owner is not None and (self.merge or self.part is not None):
            raise ValueError(f"owner has the test split for tests, so no part and no merge: {self}")

    def divide(
        self, request: Partitioner, train: Any, test: Any, classes: int, seed: int
    ) -> Division:
        """The division of a request; see `divide`."""
        if {self.group, self.time, self.owner, self.part} == {None}:
            raise ValueError(f"{self} names no column: group, time, owner or part; or LocalHoldout")
        found = super().divide(request, train, test, classes, seed)
        if self.owner is not None:
            found.parts["test"] = self._of_owners(found.parts, train, test, seed)
            found.origin["test"] = "test"
        if self.group is not None:
            self._require_apart(found, train, test)
        return found

    def _cut(
        self, request: Partitioner, pool: LabelledExamples, seed: int
    ) -> tuple[Partition, ...]:
        whole, every = request.dealt_once(pool, seed), np.arange(len(pool.labels))
        groups, said, times = every, np.full(len(every), ""), None
        if self.group is not None:
            groups = np.unique(pool.column(self.group, GROUP), return_inverse=True)[1]
        if self.time is not None:
            times = pool.times(self.time)
        if self.part is not None:
            said = pool.column(self.part, "which part is it of")
            for row in np.flatnonzero(~np.isin(said, PARTS)):
                got = f"row {row:,} of {self.part!r} is {said[row].item()!r}"
                raise ValueError(f"{got}, and a part is {' or '.join(map(repr, PARTS))}")
        told = {name: (said == name)[whole.flat] for name in PARTS[1:]}
        rest, parts = whole.only(~(told["validation"] | told["test"])), {}
        shares = {"test": self.test if self.owner is None else 0, "validation": self.validation}
        for name, share in shares.items():
            generators = draws.generators_of(seed, f"{name} by column", np.arange(whole.clients))
            if (said == name).any():
                parts[name] = whole.only(told[name])
            else:
                rest, parts[name] = draws.cut_groups(rest, share, groups, times, generators)
        return rest, parts["validation"], parts["test"]

    def _of_owners(
        self, parts: dict[str, Partition], train: Any, test: Any, seed: int
    ) -> Partition:
        """The examples of the test split, each at a client that trains on some of its owner's."""
        name, clients = str(self.owner), parts["train"].clients
        known, theirs = _numbered(name, "whose is it", train, test)
        both = [parts[part] for part in ("train", "validation")]
        held, who = (np.concatenate([getattr(p, of) for p in both]) for of in ("flat", "owners"))
        pairs, many = np.unique(known[held] * clients + who, return_counts=True)
        owner, client = np.divmod(pairs, clients)
        to = np.full(len(theirs), -1)
        order = np.argsort(theirs, kind="stable")
        values, first = np.unique(theirs[order], return_index=True)
        for one, rows in zip(values, np.split(order, first[1:]), strict=True):
            here = slice(*np.searchsorted(owner, [one, one + 1]))
            if len(many[here]):
                dealt = np.repeat(client[here], draws.apportion(many[here], len(rows)))
                to[draws.generator_of(seed, "tests of owners", one).permutation(rows)] = dealt
        if (to < 0).all():
            of = f"the {len(theirs):,} examples of the test split"
            raise ValueError(f"no client has a {name!r} of {of}, so that none has tests")
        strange = np.flatnonzero(~np.isin(theirs, known))
        for row in strange[:1]:
            those = f"{len(strange):,} examples of the test split are left out"
            why = f"no training example has their {name!r}, as row {row:,} has"
            warnings.warn(f"{those}: {why} {test.columns[name][row].item()!r}", stacklevel=2)
        rows = np.flatnonzero(to >= 0)
        return Partition.from_owners(rows, to[rows], clients, parts["train"].names)

    def _require_apart(self, found: Division, train: Any, test: Any) -> None:
        """ValueError for a group in two parts: in the test split, too, or as `part` says."""
        splits = {"train": [train], "test": [test], "merged": [train, test]}
        groups = {}
        for name, part in found.parts.items():
            of = [_column(split, str(self.group), GROUP) for split in splits[found.origin[name]]]
            groups[name] = np.concatenate(of)[part.flat]
        for one, other in combinations(PARTS, 2):
            for twice in np.intersect1d(groups[one], groups[other]).tolist():
                what = f"{self.group!r} {twice!r} has examples for {one} and for {other}"
                raise ValueError(f"{what}, and a group is in one part: leave out those of one")


def _column(split: Any, name: str, asked: str) -> NDArray[Any]:
    """A column of a split."""
    return examples(split.labels, None, 1, split.columns).column(name, asked)


def _numbered(name: str, asked: str, train: Any, test: Any) -> tuple[Ints, Ints]:
    """A number for each example of both splits, the same for the same value of a column."""
    both = []
    for split, of in ((train, "training"), (test, "test")):
        try:
            both.append(_column(split, name, asked))
        except ValueError as error:
            raise ValueError(f"the {of} split: {error}") from error
    numbers = np.unique(np.concatenate(both), return_inverse=True)[1]
    return numbers[: len(both[0])], numbers[len(both[0]) :]


def thinned(whole: Partition, labels: Ints, share: float, seed: int) -> Partition:
    """Each client's examples cut to ceil(share * n) of its n of every class, drawn at random.

    labels: [N], those that the partition's positions point at. Every client draws from a generator
    of its own.
    """
    generators = draws.generators_of(seed, "own train", np.arange(whole.clients))
    rank, of = draws.ranks(whole, labels, generators)
    return whole.only(rank < np.maximum(1, np.ceil(share * of - 1e-9)))  # 0.07 * 100 is above 7


def divide(
    request: Partitioner, held_out: MatchedHoldout | LocalHoldout, train: Any, test: Any,
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
    """The fraction ``num_clients`` of the clients keeps the fraction ``share`` of each class out.

    ``share`` 1 is a client that stays out of the federation altogether (001's q is
    ``num_clients``). Of M clients round(clients M) opt out, with floor(share n) of their n examples
    of a class. Who and what is drawn so that those who opt out at one fraction also do at every
    larger one.

    >>> from dataclasses import replace
    >>> fed = replace(tiny.task, opt_out=OptOut(clients=0.5, share=1.0)).build(seed=0)
    >>> int((fed.sizes == 0).sum()), fed.num_clients  # who takes no part has nothing to train on
    (3, 6)
    """

    clients: Share = 0.9
    share: Share = 1.0

    def stays_in(
        self, train: Partition, labels: Ints, seed: int, first: int = 0, population: int = 0
    ) -> NDArray[np.bool_]:
        """Return which examples of the training part take part, ``[examples]``.

        Its clients are those from ``first`` on, of a ``num_clients`` (0: of these). ValueError if
        of all of these nobody has an example that does.
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
