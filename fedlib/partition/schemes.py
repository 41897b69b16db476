"""Partitioners: label skew, quantity skew, mixtures of classes, and natural partitions."""

from itertools import repeat
from typing import Annotated

import numpy as np

from fedlib.partition import draws
from fedlib.partition.draws import Ints, LabelledExamples, Partition
from fedlib.partition.partitioner import Partitioner
from fedlib.values import PositiveFloat, PositiveInt, Share, value


@value
class Dirichlet(Partitioner):
    """Label skew: each client's label distribution is drawn from Dir(alpha).

    Clients draw examples of p_s ~ Dir(alpha) in turn and without replacement; a class that is
    exhausted is removed and p_s renormalised. Each client has exactly ``size`` examples.

    Args:
        clients: the number of clients. Default: 100.
        alpha: concentration of every class, above 0. Smaller values give stronger label skew.
            Default: 1.
        size: examples per client. Default: None, an even share of all.

    Reference: Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for
    federated visual classification, arXiv:1909.06335, section 3.

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", Dirichlet(clients=5, alpha=0.1, size=40), MLP((8,)), held)
    >>> task.counts(seed=0)["train"].sum(1).tolist()
    [40, 40, 40, 40, 40]
    """

    clients: PositiveInt = 100
    alpha: PositiveFloat = 1.0
    size: PositiveInt | None = None

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        size = draws.per_client(self.clients, self.size, len(pool.positions))

        def draw(client: int, generator: np.random.Generator, left: Ints) -> Ints:
            return draws.draw_labels(generator, self.alpha, left, size)

        counts = np.zeros((self.clients, pool.classes), np.int64)
        names = "dirichlet examples", "dirichlet shares"
        return draws.assign_in_turn(pool, seed, names, counts, draw)


def _in_amounts(dealt: Ints, sizes: Ints) -> Partition:
    """Return the partition that assigns consecutive examples in the given amounts."""
    return Partition.from_owners(dealt, np.repeat(np.arange(len(sizes)), sizes), len(sizes))


@value
class IID(Partitioner):
    """Examples drawn uniformly without replacement, equally many for each client.

    Args:
        clients: the number of clients. Default: 100.
        size: examples per client. Default: None, an even share of all.

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", IID(clients=4), MLP((8,)), held)
    >>> counts = task.counts(seed=0)["train"]  # [clients, classes]
    >>> bool(counts.min() > 0)
    True
    """

    clients: PositiveInt = 100
    size: PositiveInt | None = None

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        each = draws.per_client(self.clients, self.size, len(pool.positions))
        sizes = np.full(self.clients, each)
        dealt = draws.generator_of(seed, "iid").permutation(pool.positions)
        return _in_amounts(dealt[: sizes.sum()], sizes)


@value
class QuantitySkew(Partitioner):
    """Quantity skew: i.i.d. examples, in amounts drawn from Dir(alpha) over clients.

    All examples are assigned. The amounts are redrawn until every client has at least ``least``
    examples, at most 1,000 times.

    Args:
        clients: the number of clients. Default: 100.
        alpha: concentration of every client, above 0. Default: 1.
        least: the smallest number of examples of a client. Default: 10.

    Reference: Li et al., Federated learning on non-IID data silos: an experimental study, ICDE
    2022, arXiv:2102.02079, sec. 4.

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", QuantitySkew(clients=5, alpha=0.5), MLP((8,)), held)
    >>> sizes = task.counts(seed=0)["train"].sum(1)
    >>> bool(sizes.max() > 2 * sizes.min())
    True
    """

    clients: PositiveInt = 100
    alpha: PositiveFloat = 1.0
    least: PositiveInt = 10

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return the partition; ValueError also if no draw is large enough."""
        total = len(pool.positions)
        draws.per_client(self.clients, self.least, total, "examples at least")
        generator = draws.generator_of(seed, "quantity sizes")

        def draw() -> tuple[int, Ints]:
            shares = draws.draw_shares(generator, self.alpha, self.clients)
            sizes = draws.apportion(shares, total)
            return int(sizes.min()), sizes

        what = f"divide {total:,} examples among {self.clients:,} clients with alpha {self.alpha:g}"
        dealt = draws.generator_of(seed, "quantity examples").permutation(pool.positions)
        return _in_amounts(dealt, draws.redraw(draw, self.least, what))


@value
class Shards(Partitioner):
    """Label skew by shards: examples sorted by label are divided into shards of equal size.

    Each client is assigned ``shards`` shards at random, and so has few classes. Examples are
    shuffled within classes; the few that remain if the division is not even are left out at random.

    Args:
        clients: the number of clients. Default: 100.
        shards: shards per client. Default: 2.

    Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized
    data, AISTATS 2017, section 3.

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", Shards(clients=10, shards=2), MLP((8,)), held)
    >>> classes = (task.counts(seed=0)["train"] > 0).sum(1)
    >>> bool(classes.max() <= 4)
    True
    """

    clients: PositiveInt = 100
    shards: PositiveInt = 2

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        total, shards = len(pool.positions), self.clients * self.shards
        draws.per_client(self.clients, self.shards, total, "shards of an example")
        dealt = draws.generator_of(seed, "shards examples").permutation(pool.positions)
        dealt = dealt[: total // shards * shards]
        dealt = dealt[np.argsort(pool.labels[dealt], kind="stable")].reshape(shards, -1)
        order = draws.generator_of(seed, "shards").permutation(shards)
        return Partition.from_lists(np.sort(dealt[order].reshape(self.clients, -1), 1))


@value(kind="Majority")
class MajorityClasses(Partitioner):
    """Label skew by majority classes: two classes make up a fraction p of each client's examples.

    A client with the classes (a, b) holds floor(p size / 2) examples of each. The rest is drawn
    uniformly from the examples of other classes that are not reserved for majorities. With p = 2 /
    C clients are close to i.i.d.

    Args:
        clients: the number of clients. Default: 100.
        size: examples per client. Default: 100.
        p: fraction of the two majority classes, in [0, 1]. Default: 0.8.
        pairs: "distinct" draws two different classes for each client; "disjoint" uses every class
            for at most one client, as the released code does without overlap. Default: "distinct".

    Reference: Listo Zec et al., 2020 and 2021; Isaksson et al., 2022.

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", MajorityClasses(clients=5, size=40, p=1.0), MLP((8,)), held)
    >>> (task.counts(seed=0)["train"] > 0).sum(1).tolist()
    [2, 2, 2, 2, 2]
    """

    clients: PositiveInt = 100
    size: PositiveInt = 100
    p: Share = 0.8
    pairs: Annotated[str, ("distinct", "disjoint")] = "distinct"

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return the partition; ValueError names a class with too few examples."""
        pairs = self._pairs(seed, pool.classes)
        half = draws.whole_part(self.p * self.size / 2)
        rest = self.size - 2 * half
        counts = np.zeros((self.clients, pool.classes), np.int64)
        np.add.at(counts, (np.arange(self.clients)[:, None], pairs), half)

        def draw(client: int, generator: np.random.Generator, left: Ints) -> Ints:
            others = left.copy()
            others[pairs[client]] = 0
            what = f"examples for client {client}, not of its classes {pairs[client].tolist()}"
            draws.require_at_least(what, rest, int(others.sum()))
            return generator.multivariate_hypergeometric(others, rest, method="marginals")

        names = "majority examples", "majority rest"
        return draws.assign_in_turn(pool, seed, names, counts, draw)

    def _pairs(self, seed: int, classes: int) -> Ints:
        """Return each client's two majority classes, int64 ``[clients, 2]``."""
        needed = 2 if self.pairs == "distinct" else 2 * self.clients
        draws.require_at_least(f"classes for {self.clients:,} {self.pairs} pairs", needed, classes)
        if self.pairs == "distinct":
            generators = draws.generators_of(seed, "majority pair", np.arange(self.clients))
            return np.array([g.choice(classes, 2, replace=False) for g in generators])
        order = draws.generator_of(seed, "majority pairs").permutation(classes)
        return order[:needed].reshape(self.clients, 2)


@value
class Pachinko(Partitioner):
    """Pachinko allocation: hierarchical label skew over coarse and fine labels.

    A client has theta ~ Dir(root_alpha) over the coarse labels, and theta_c ~ Dir(leaf_alpha) over
    the fine labels of each. It draws ``size`` times a coarse label, one of its fine labels, and an
    unused example of that. A fine label that is exhausted is removed and theta_c renormalised;
    likewise a coarse label without fine labels.

    Args:
        clients: the number of clients. Default: 500.
        size: examples per client. Default: 100.
        root_alpha: concentration over coarse labels, above 0. Default: 0.1.
        leaf_alpha: concentration over fine labels, above 0. Default: 10.
        coarse: the column with the coarse labels. Default: "coarse_label".

    Reference: Reddi et al., Adaptive federated optimization, ICLR 2021, arXiv:2003.00295, app. F;
    CIFAR-100 in Reisser et al., 2021.

    >>> Pachinko(clients=100, size=500, root_alpha=0.1).coarse
    'coarse_label'
    """

    clients: PositiveInt = 500
    size: PositiveInt = 100
    root_alpha: PositiveFloat = 0.1
    leaf_alpha: PositiveFloat = 10.0
    coarse: str = "coarse_label"

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return the partition.

        Raises:
            ValueError: also without the column, or if a class has several coarse labels.
        """
        draws.per_client(self.clients, self.size, len(pool.positions))
        above, coarse = np.unique(pool.column(self.coarse), return_inverse=True)
        pairs = np.unique(np.column_stack([pool.labels[pool.positions], coarse]), axis=0)
        if len(pairs) > len(np.unique(pairs[:, 0])):
            raise ValueError(f"a class has more than one value in column {self.coarse!r}")
        families = [pairs[pairs[:, 1] == c, 0] for c in range(len(above))]

        def draw(client: int, generator: np.random.Generator, left: Ints) -> Ints:
            counts = np.zeros_like(left)
            # Clipping draws at the examples left of coarse and then of fine labels is equivalent
            # to removing exhausted labels one by one.
            room = np.array([left[family].sum() for family in families])
            wanted = draws.draw_labels(generator, self.root_alpha, room, self.size)
            for family, n in zip(families, wanted, strict=True):
                if n:
                    mine = left[family]
                    counts[family] = draws.draw_labels(generator, self.leaf_alpha, mine, int(n))
            return counts

        counts = np.zeros((self.clients, pool.classes), np.int64)
        names = "pachinko examples", "pachinko shares"
        return draws.assign_in_turn(pool, seed, names, counts, draw)


@value(kind="ByColumn")
class NaturalPartition(Partitioner):
    """The natural partition: one client per distinct value of a column, such as the writer.

    Clients are sorted by their values, which become their names, and hold all of their examples.

    Args:
        column: the column. Default: "writer_id".
        clients: the number of clients, drawn at random. Default: None, all of them.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> who = np.repeat(["ann", "bob", "eve"], 40)
    >>> train = rng.normal(size=(120, 5)), rng.integers(2, size=120), {"writer": who}
    >>> _ = data.add_data("letters", train)
    >>> task = Task("letters", NaturalPartition("writer"), MLP((8,)), LocalHoldout(test=0.25))
    >>> task.counts(seed=0)["train"].shape  # [clients, classes]
    (3, 2)
    """

    column: str = "writer_id"
    clients: PositiveInt | None = None

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return the partition; ValueError if there are too few values, or one is missing."""
        given = pool.column(self.column, "whose is it")
        distinct, who = np.unique(given, return_inverse=True)
        chosen = np.arange(len(distinct))
        if self.clients is not None:
            draws.require_at_least(f"values of {self.column!r}", self.clients, len(distinct))
            generator = draws.generator_of(seed, "by column")
            chosen = np.sort(generator.choice(chosen, self.clients, replace=False))
        row = np.full(len(distinct), -1)
        row[chosen] = np.arange(len(chosen))
        owner = row[who]
        names, some = tuple(map(str, distinct[chosen].tolist())), owner >= 0
        return Partition.from_owners(pool.positions[some], owner[some], len(chosen), names)


@value
class ClassDirichlet(Partitioner):
    """Label and quantity skew: each class is divided by a draw of Dir(alpha) over clients.

    For each class, the examples are shuffled. The first int(shared * n) are given to all clients
    equally, floor(n / clients) each and the remainder to the last client. The others are divided at
    the floor of n times the cumulated shares, where clients that already hold a fraction 1 /
    clients of all examples get none. The whole is repeated on the same stream, RandomState(seed),
    until every client has ``least`` examples.

    Args:
        clients: the number of clients. Default: 20.
        alpha: concentration of every client, above 0. Default: 0.1.
        shared: fraction of each class that is divided equally, in [0, 1). Default: 0.
        least: the smallest number of examples of a client. Default: None, which is
            min(40, N / clients / 2), the number that a test fraction of 0.25 needs.
        seed: the seed of the partition, whatever the seed of the run; None for the latter. Default:
            1, as in PFLlib.

    Reference: Feng et al., PM-MoE, 2025, sec. 5.1 (its S = 20 is ``shared=0.2``); PFLlib, whose
    "dir" is equal draw for draw with ``shared=0``.

    >>> own = LocalHoldout(test=0.25, merge=True)
    >>> task = Task("digits", ClassDirichlet(clients=5, alpha=0.5), MLP((8,)), own)
    >>> sum(int(part.sum()) for part in task.counts(seed=0).values())
    1797
    """

    clients: PositiveInt = 20
    alpha: PositiveFloat = 0.1
    shared: Annotated[float, "[0, 1)"] = 0.0
    least: PositiveInt | None = None
    seed: Annotated[int | None, "[0, 4294967296)"] = 1

    def dealt(self, pool: LabelledExamples, seed: int) -> tuple[Partition, np.random.RandomState]:
        """Return the partition in the order of the draws, and the random stream after them.

        Raises:
            ValueError: if the partition is impossible, or after 1,000 tries.
        """
        total, clients = len(pool.positions), self.clients
        fair = max(1, int(min(40, total / clients / 2)))
        least = fair if self.least is None else self.least
        draws.per_client(clients, least, total, "examples at least")
        # NumPy's legacy generator, because published partitions were drawn with it.
        state = np.random.RandomState(seed if self.seed is None else self.seed)
        stacks = pool._replace(positions=np.sort(pool.positions)).indices_by_class()

        def draw() -> tuple[int, Partition]:
            dealt = self._one_try(stacks, total, state)
            return int(dealt.sizes.min()), dealt

        what = f"divide {total:,} examples among {clients:,} clients with alpha {self.alpha:g}"
        return draws.redraw(draw, least, what), state

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        dealt, _ = self.dealt(pool, seed)
        return Partition.from_owners(dealt.flat, dealt.owners, dealt.clients)

    def split_off(
        self, pool: LabelledExamples, seed: int, share: float
    ) -> tuple[Partition, Partition]:
        """Return (kept, held out), as PFLlib's train_test_split on the same stream."""
        dealt, state = self.dealt(pool, seed)
        return draws.cut_rows(dealt, share, repeat(state))

    def _one_try(self, stacks: list[Ints], total: int, state: np.random.RandomState) -> Partition:
        clients, concentration = self.clients, np.full(self.clients, self.alpha)
        held = np.zeros(clients, np.int64)
        dealt, owners = [], []
        for stack in stacks:
            dealt.append(state.permutation(stack))
            common = int(self.shared * len(stack))
            each = np.diff(common // clients * np.arange(clients), append=common)
            held += each
            hungry = held < total / clients
            shares = state.dirichlet(concentration) * hungry
            if not shares.sum() > 0:  # alpha underflows: one client gets the whole class
                shares = 1.0 * (np.arange(self.clients) == hungry.argmax())
            rest = len(stack) - common
            cuts = (np.cumsum(shares / shares.sum()) * rest).astype(int)[:-1]
            others = np.diff(cuts, prepend=0, append=rest)
            held += others
            owners += [np.repeat(np.arange(clients), n) for n in (each, others)]
        order = np.argsort(np.concatenate(owners), kind="stable")
        return Partition(np.concatenate(dealt)[order], held)
