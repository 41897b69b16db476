"""Examples on which a client is not trained: validation, tests, and what opted out."""

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
    """The partitions for training, validation and tests.

    Args:
        parts: the partitions "train", "validation" and "test".
        origin: the split that the positions of each part index: "train", "test", or "merged" for
            the training split followed by the test split.
    """

    parts: dict[str, Partition]
    origin: dict[str, str]


@value(kind="Mirrored")
class MatchedHoldout:
    """Held-out validation and test examples with the label proportions of each client.

    Before the partition, a stratified pool is held out for validation. Each client is then given
    validation examples from this pool and test examples from the test split, drawn with its label
    proportions. Training, validation and test examples are disjoint. Clients may share validation
    and test examples, and none of them belongs to a client (``LocalHoldout`` and
    ``HoldoutByColumn`` hold out examples of the clients themselves).

    Args:
        pool: the number of examples in this pool, fewer than in the split. Default: 5,000.
        validation: validation examples per client. Default: 50.
        test: test examples per client. Default: 100.
        source: the split from which the pool is taken. With "test", clients are trained on the
            whole training split and tested on the rest of the test split. Default: "train".
        group: a column whose values are not divided between parts, such as the patient. The pool
            then is as large as whole groups allow and not stratified, and test examples of groups
            that the training split has are not used. Default: None.

    Reference: Listo Zec et al., 2021. Reisser et al., 2021, do not describe the test data of
    clients; here they are the same.

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
        """Return the division of the data for a partitioner; see ``divide``."""
        if not len(test.labels):
            instead = "use LocalHoldout, not MatchedHoldout"
            raise ValueError(f"there is no test split to draw tests from; {instead}")
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
        """Return (kept, held out) positions of the source, and test positions, None for all."""
        ours = train if self.source == "train" else test
        rows = np.arange(len(ours.labels))
        if self.group is not None:
            known, theirs = _numbered(self.group, GROUP, train, test)
            apart = np.flatnonzero(~np.isin(theirs, known))
            if not len(apart):
                instead = f"use HoldoutByColumn(group={self.group!r}, merge=True)"
                raise ValueError(f"every {self.group!r} of the test split is trained on; {instead}")
            rows, groups = (apart, theirs) if ours is test else (rows, known)
        what = f"examples to set {self.pool:,} aside and keep one"
        some = f"MatchedHoldout(pool={max(1, len(rows) // 5)}, validation=20, test=30)"
        instead = f"; use LocalHoldout(), or smaller numbers, such as {some}"
        draws.require_at_least(what, self.pool + 1, len(rows), instead)
        if self.group is None:
            return draws.holdout(ours.labels, self.pool, seed), None
        whole, turns = Partition(rows, np.array([len(rows)])), draws.generator_of(seed, "groups")
        kept, held = draws.cut_groups(whole, self.pool / len(rows), groups, None, [turns])
        return (kept.flat, held.flat), apart


@value(kind="Own")
class LocalHoldout:
    """Validation and test examples that are a random part of each client's own.

    Of a client's n examples, max(1, floor((1 - test) n)) remain after its test examples, and the
    same rule with ``validation`` then leaves its training examples. Every client has training
    examples; a client with very few may lack the others. With ``ClassDirichlet`` test examples are
    drawn as in PFLlib; that of Feng et al. (2025) is
    ``LocalHoldout(test=0.25, merge=True)``.

    Args:
        test: fraction of the examples for tests, in [0, 1). With 0 there are none, and metrics of
            tests are NaN. Default: 0.25.
        validation: fraction of the rest for validation, in [0, 1). Default: 0.1.
        merge: whether the training split and the test split are merged and then partitioned, as in
            PFLlib. If false, the test split is not used (``HoldoutByColumn`` can use it). Default:
            False.
        train: fraction of the training examples of each class that a client keeps, rounded up so
            that no class is lost; the rest is not used. Validation and tests do not change.
            Default: 1.

    >>> held = LocalHoldout(validation=0.1, test=0.2)
    >>> task = Task("digits", IID(clients=4, size=100), MLP((8,)), held)
    >>> {name: int(part.sum(1)[0]) for name, part in task.counts(seed=0).items()}
    {'train': 72, 'validation': 8, 'test': 20}
    """

    test: Annotated[float, "[0, 1)"] = 0.25
    validation: Annotated[float, "[0, 1)"] = 0.1
    merge: bool = False
    train: Annotated[float, "(0, 1]"] = 1.0

    def divide(
        self, request: Partitioner, train: Any, test: Any, classes: int, seed: int
    ) -> Division:
        """Return the division of the data for a partitioner; see ``divide``."""
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
        """Return the training, validation and test parts of a partition of ``pool``."""
        kept, tested = request.split_off(pool, seed, self.test)
        return *draws.halves(kept, self.validation, seed, "own validation"), tested


@value
class HoldoutByColumn(LocalHoldout):
    """Validation and test examples of each client's own, selected by columns of the data.

    At least one of the four columns must be given. A client with two or more groups, or times, has
    test examples; one with a single group or time is trained on it.

    Args:
        test, validation, merge, train: as in ``LocalHoldout``.
        group: examples with the same value are in one part for all clients, such as the records of
            a patient. Parts are as near to their fractions as whole groups allow. Default: None.
        time: numbers, or dates such as 2021-04-03. A client is tested on its latest examples and
            validated on the latest before these; simultaneous examples are in one part. With
            ``group``, the time of a group is that of its first example at the client. Default:
            None.
        owner: the test split is used for tests, and each of its examples is given to the client
            that is trained on examples with the same value, as in LEAF. If several qualify, one is
            drawn with probability proportional to how many such examples it has. ``test`` has no
            effect then. Default: None.
        part: a column with the values "train", "validation" and "test", which assigns each example.
            If "validation" or "test" does not occur, that fraction is held out. Default: None.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> patient = np.repeat(np.arange(30), 4)
    >>> columns = {"hospital": patient % 3, "patient": patient}
    >>> _ = data.add_data("stays", (rng.normal(size=(120, 5)), rng.integers(2, size=120), columns))
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
            raise ValueError(f"owner uses the test split, which excludes part and merge: {self}")

    def divide(
        self, request: Partitioner, train: Any, test: Any, classes: int, seed: int
    ) -> Division:
        """Return the division of the data for a partitioner; see ``divide``."""
        if {self.group, self.time, self.owner, self.part} == {None}:
            raise ValueError(f"{self} needs a column: group, time, owner or part")
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
                raise ValueError(f"{got}, but must be {' or '.join(map(repr, PARTS))}")
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
        """Return the test split, each example at a client that is trained on its owner's."""
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
            raise ValueError(f"no client has a {name!r} of {of}, so that there are no tests")
        strange = np.flatnonzero(~np.isin(theirs, known))
        for row in strange[:1]:
            those = f"{len(strange):,} examples of the test split are left out"
            why = f"no training example has their {name!r}, as row {row:,} has"
            warnings.warn(f"{those}: {why} {test.columns[name][row].item()!r}", stacklevel=2)
        rows = np.flatnonzero(to >= 0)
        return Partition.from_owners(rows, to[rows], clients, parts["train"].names)

    def _require_apart(self, found: Division, train: Any, test: Any) -> None:
        """Raise ValueError if a group has examples in two parts."""
        splits = {"train": [train], "test": [test], "merged": [train, test]}
        groups = {}
        for name, part in found.parts.items():
            of = [_column(split, str(self.group), GROUP) for split in splits[found.origin[name]]]
            groups[name] = np.concatenate(of)[part.flat]
        for one, other in combinations(PARTS, 2):
            for twice in np.intersect1d(groups[one], groups[other]).tolist():
                what = f"{self.group!r} {twice!r} has examples for {one} and for {other}"
                raise ValueError(f"{what}, but a group must be in one part")


def _column(split: Any, name: str, asked: str) -> NDArray[Any]:
    """Return a column of a split."""
    return examples(split.labels, None, 1, split.columns).column(name, asked)


def _numbered(name: str, asked: str, train: Any, test: Any) -> tuple[Ints, Ints]:
    """Return integer codes of a column's values for both splits, equal for equal values."""
    both = [_column(split, name, asked) for split in (train, test)]
    numbers = np.unique(np.concatenate(both), return_inverse=True)[1]
    return numbers[: len(both[0])], numbers[len(both[0]) :]


def thinned(whole: Partition, labels: Ints, share: float, seed: int) -> Partition:
    """Return the partition with ceil(share * n) of each client's n examples of every class.

    Args:
        whole: the partition.
        labels: labels of the split, int64 ``[N]``.
        share: the fraction to keep.
        seed: the seed. Every client has a generator of its own.
    """
    generators = draws.generators_of(seed, "own train", np.arange(whole.clients))
    rank, of = draws.ranks(whole, labels, generators)
    # 0.07 * 100 exceeds 7 by rounding.
    return whole.only(rank < np.maximum(1, np.ceil(share * of - 1e-9)))


def divide(
    request: Partitioner, held_out: MatchedHoldout | LocalHoldout, train: Any, test: Any,
    classes: int, seed: int,
) -> Division:  # fmt: skip
    """Return the partitions for training, validation and tests, with side information.

    No validation or test example is in a client's training part, and no test example in a
    validation part.

    Args:
        request: the partitioner.
        held_out: how validation and test examples are selected.
        train, test: the splits of a data set, with ``labels`` and ``columns``.
        classes: the number of classes.
        seed: the seed.

    Raises:
        ValueError: with the numbers, if the division is impossible.
    """
    division = held_out.divide(request, train, test, classes, seed)
    parts = {part: request.side(rows, part, seed, classes) for part, rows in division.parts.items()}
    return Division(parts, division.origin)


@value
class OptOut:
    """Some clients exclude examples from federated training.

    Of M clients, round(clients M) opt out, with floor(share n) of their n examples of each class.
    The draws are nested: a client that opts out at one fraction also does at every larger fraction.

    Args:
        clients: fraction of the clients that opt out (q in Listo Zec et al., 2021), in [0, 1].
            Default: 0.9.
        share: fraction of each class that such a client excludes, in [0, 1]. With 1 it does not
            take part at all. Default: 1.

    >>> from dataclasses import replace
    >>> from fedrun import tiny
    >>> fed = replace(tiny.task, opt_out=OptOut(clients=0.5, share=1.0)).build(seed=0)
    >>> int((fed.sizes == 0).sum()), fed.num_clients  # who takes no part has nothing to train on
    (3, 6)
    """

    clients: Share = 0.9
    share: Share = 1.0

    def stays_in(
        self, train: Partition, labels: Ints, seed: int, first: int = 0, population: int = 0
    ) -> NDArray[np.bool_]:
        """Return which training examples take part, bool ``[examples]``.

        Args:
            train: the partition for training.
            labels: labels of its split, int64 ``[N]``.
            seed: the seed.
            first: the number of its first client among all. Default: 0.
            population: the number of all clients, 0 for those of ``train``. Default: 0.

        Raises:
            ValueError: if no example of all clients takes part.
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
