"""The schemes of dealing, as values: label skew, quantity skew, mixtures by hand, natural ones."""

from itertools import repeat
from typing import Annotated

import numpy as np

from fedlib.partition import draws
from fedlib.partition.draws import Ints, LabelledExamples, Partition
from fedlib.partition.partitioner import Partitioner
from fedlib.values import PositiveFloat, PositiveInt, Share, value


@value
class Dirichlet(Partitioner):
    """Each client has a label distribution p_s ~ Dir(alpha), and examples drawn from it.

    Dir(alpha) has the concentration alpha for every class. Rows are disjoint, sorted and exactly
    `size` long (all of the pool, evenly, when None). Client after client draws its labels from p_s,
    and takes unused examples of them; a class that has run out is removed and p_s renormalised.

    Source: Hsu, Qi and Brown (2019), arXiv:1909.06335, section 3.

    `num_clients` is how many there are.

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
    """The partition that gives the first sizes[0] of what is dealt to client 0, and so on."""
    return Partition.from_owners(dealt, np.repeat(np.arange(len(sizes)), sizes), len(sizes))


@value
class IID(Partitioner):
    """Shuffled examples, `size` for each client (all of them, evenly, when None).

    `num_clients` is how many there are.

    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", IID(clients=4), MLP((8,)), held)
    >>> counts = task.counts(seed=0)["train"]  # [clients, classes]
    >>> bool(counts.min() > 0)
    True
    """

    clients: PositiveInt = 100
    size: PositiveInt | None = None

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        sizes = np.full(
            self.clients, draws.per_client(self.clients, self.size, len(pool.positions))
        )
        dealt = draws.generator_of(seed, "iid").permutation(pool.positions)
        return _in_amounts(dealt[: sizes.sum()], sizes)


@value
class QuantitySkew(Partitioner):
    """The whole pool dealt i.i.d., in unequal amounts: client shares ~ Dir(alpha) over clients.

    The shares are redrawn until every client has at least `least` examples, 1,000 times at most.
    Rows are disjoint and together the pool. Source: Li et al. (2022), arXiv:2102.02079, sec. 4.

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
        """ValueError also when no draw is large enough."""
        total = len(pool.positions)
        draws.per_client(self.clients, self.least, total, "examples at least")
        generator = draws.generator_of(seed, "quantity sizes")

        def draw() -> tuple[int, Ints]:
            shares = draws.draw_shares(generator, self.alpha, self.clients)
            sizes = draws.apportion(shares, total)
            return int(sizes.min()), sizes

        what = f"share {total:,} examples among {self.clients:,} clients with alpha {self.alpha:g}"
        dealt = draws.generator_of(seed, "quantity examples").permutation(pool.positions)
        return _in_amounts(dealt, draws.redraw(draw, self.least, what))


@value
class Shards(Partitioner):
    """Examples sorted by label, cut into clients x shards equal pieces; each client gets `shards`.

    Which examples of a class lie in which shard is random, as are the few that are left out
    where the pool does not divide. Rows are disjoint and equally long.
    Source: McMahan et al. (2017), arXiv:1602.05629, section 3.

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
    """Two classes make up the fraction p of every client, the other classes the rest.

    A client with the pair (a, b) holds floor(p size / 2) examples of a, as many of b, and draws
    the rest uniformly from what the majorities of all clients left of the other classes. Rows
    are disjoint and exactly `size` long. p = 2 / C is close to i.i.d.

    pairs: "distinct" is two different classes drawn for each client; "disjoint" also uses no
    class for two clients, as the released code without its overlap. Source: 001, 002 and 003.

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
        """ValueError names the class that runs out."""
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

        return draws.assign_in_turn(
            pool, seed, ("majority examples", "majority rest"), counts, draw
        )

    def _pairs(self, seed: int, classes: int) -> Ints:
        """Each client's two majority classes, [clients, 2]."""
        needed = 2 if self.pairs == "distinct" else 2 * self.clients
        draws.require_at_least(f"classes for {self.clients:,} {self.pairs} pairs", needed, classes)
        if self.pairs == "distinct":
            generators = draws.generators_of(seed, "majority pair", np.arange(self.clients))
            return np.array([g.choice(classes, 2, replace=False) for g in generators])
        order = draws.generator_of(seed, "majority pairs").permutation(classes)
        return order[:needed].reshape(self.clients, 2)


@value
class Pachinko(Partitioner):
    """Pachinko allocation: each client draws coarse labels, and of each of them fine labels.

    A client has theta ~ Dir(root_alpha) over the coarse labels and, for each of them, theta_c ~
    Dir(leaf_alpha) over its fine labels. It draws `size` times a coarse label, a fine label of
    it, and an unused example of that. A fine label that has run out is removed and theta_c
    renormalised; a coarse label without fine labels likewise. Rows are disjoint and exactly
    `size` long. coarse: the column with the coarse labels.

    Source: Reddi et al. (2021), arXiv:2003.00295, app. F; 000's CIFAR-100.

    `num_clients` is how many there are.

    >>> Pachinko(clients=100, size=500, root_alpha=0.1).coarse
    'coarse_label'
    """

    clients: PositiveInt = 500
    size: PositiveInt = 100
    root_alpha: PositiveFloat = 0.1
    leaf_alpha: PositiveFloat = 10.0
    coarse: str = "coarse_label"

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """ValueError also without the coarse labels, or when a class has two of them."""
        draws.per_client(self.clients, self.size, len(pool.positions))
        above, coarse = np.unique(pool.column(self.coarse), return_inverse=True)
        pairs = np.unique(np.column_stack([pool.labels[pool.positions], coarse]), axis=0)
        if len(pairs) > len(np.unique(pairs[:, 0])):
            raise ValueError(f"a class has more than one value in column {self.coarse!r}")
        families = [pairs[pairs[:, 1] == c, 0] for c in range(len(above))]

        def draw(client: int, generator: np.random.Generator, left: Ints) -> Ints:
            counts = np.zeros_like(left)
            # What is left of a coarse label bounds its draws, what is left of a fine label its
            # share of them: which is what removing exhausted labels one by one amounts to.
            room = np.array([left[family].sum() for family in families])
            wanted = draws.draw_labels(generator, self.root_alpha, room, self.size)
            for family, n in zip(families, wanted, strict=True):
                if n:
                    mine = left[family]
                    counts[family] = draws.draw_labels(generator, self.leaf_alpha, mine, int(n))
            return counts

        counts = np.zeros((self.clients, pool.classes), np.int64)
        return draws.assign_in_turn(
            pool, seed, ("pachinko examples", "pachinko shares"), counts, draw
        )


@value(kind="ByColumn")
class NaturalPartition(Partitioner):
    """The natural partition: one client for each distinct value of a column, such as its writer.

    Clients are in the order of their values, which are their names, and hold all of their examples.
    `num_clients`, when given, is how many of them take part, drawn at random by the seed of the
    run.

    >>> rng = np.random.default_rng(0)
    >>> who = np.repeat(["ann", "bob", "eve"], 40)
    >>> train = rng.normal(size=(120, 5)), rng.integers(2, size=120), {"writer": who}
    >>> _ = data.add("letters", train)
    >>> task = Task("letters", NaturalPartition("writer"), MLP((8,)), LocalHoldout(test=0.25))
    >>> task.counts(seed=0)["train"].shape  # [clients, classes]
    (3, 2)
    """

    column: str = "writer_id"
    clients: PositiveInt | None = None

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """ValueError with too few clients, and for an example that is nobody's."""
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
    """Class after class is dealt in proportion to a draw of Dir(alpha) over the clients.

    Per class: its examples are shuffled; the first int(shared * n) go to all clients alike,
    floor(n / clients) each and what remains to the last; the others are cut at the floor of n times
    the cumulated shares, where a client that already holds an N-th / clients part of everything
    gets none. The whole is repeated on the same stream, RandomState(seed), until every client has
    `least` examples: min(40, N / clients / 2) when None, the number that a test share of 0.25 asks
    for. seed: of the partition, 1 in PFLlib, whatever the seed of the run; None for that.

    Source: 004, sec. 5.1 (shared = 0.2 is its S = 20); PFLlib, where "dir" is shared = 0, draw for
    draw.

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
        """The partition in the order dealt, and the stream as it stands after that.

        ValueError for the impossible, and after 1,000 tries.
        """
        total, clients = len(pool.positions), self.clients
        fair = max(1, int(min(40, total / clients / 2)))
        least = fair if self.least is None else self.least
        draws.per_client(clients, least, total, "examples at least")
        # The old generator, because the published partitions were drawn with it.
        state = np.random.RandomState(seed if self.seed is None else self.seed)
        stacks = pool._replace(positions=np.sort(pool.positions)).indices_by_class()

        def draw() -> tuple[int, Partition]:
            dealt = self._one_try(stacks, total, state)
            return int(dealt.sizes.min()), dealt

        what = f"deal {total:,} examples of {pool.classes:,} classes to {clients:,} clients with"
        return draws.redraw(draw, least, f"{what} alpha {self.alpha:g}"), state

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        dealt, _ = self.dealt(pool, seed)
        return Partition.from_owners(dealt.flat, dealt.owners, dealt.clients)

    def split_off(
        self, pool: LabelledExamples, seed: int, share: float
    ) -> tuple[Partition, Partition]:
        """Train and test rows as PFLlib's: train_test_split of each client, on the same stream."""
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
            if not shares.sum() > 0:  # a vanishing alpha: one client gets all of the class
                shares = 1.0 * (np.arange(self.clients) == hungry.argmax())
            rest = len(stack) - common
            cuts = (np.cumsum(shares / shares.sum()) * rest).astype(int)[:-1]
            others = np.diff(cuts, prepend=0, append=rest)
            held += others
            owners += [np.repeat(np.arange(clients), n) for n in (each, others)]
        order = np.argsort(np.concatenate(owners), kind="stable")
        return Partition(np.concatenate(dealt)[order], held)
