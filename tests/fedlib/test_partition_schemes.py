"""Every scheme of dealing: what all promise, what each promises, and PFLlib's as published."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from cases import GOLDEN
from dealing import REQUESTS, balanced, deal, printed, rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedlib import (
    ClassDirichlet,
    Dirichlet,
    MajorityClasses,
    NaturalPartition,
    Pachinko,
    Rotated,
    Shards,
)
from fedlib.partition import (
    IID,
    LabelPermuted,
    LocalHoldout,
    QuantitySkew,
    RepeatedPartition,
    divide,
)
from fedlib.partition.draws import examples
from fedlib.values import from_dict, to_dict

few = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
alphas = st.floats(1e-3, 1e3)
CLASSES = 7


# For every scheme its fields; a pool of 8 examples or more has enough for most of what they make.
clients, sizes, some = st.integers(1, 6), st.integers(1, 12), st.integers(1, 3)
SCHEMES = {
    "Dirichlet": (Dirichlet, clients, alphas, st.none() | sizes),
    "IID": (IID, clients, st.none() | sizes),
    "QuantitySkew": (QuantitySkew, clients, st.floats(0.5, 9), some),
    "ClassDirichlet": (ClassDirichlet, clients, st.floats(0.1, 9),
                       st.sampled_from([0.0, 0.2, 0.9]), st.none() | some, st.none() | st.just(1)),
    "MajorityClasses": (MajorityClasses, clients, sizes, st.floats(0, 1),
                 st.sampled_from(["distinct", "disjoint"])),
    "Shards": (Shards, clients, some),
    "Pachinko": (Pachinko, clients, sizes, alphas, alphas, st.just("family")),
    "ByColumn": (NaturalPartition, st.just("writer"), st.none() | some),
}  # fmt: skip


@st.composite
def problems(draw, scheme):
    """A request, labels with other columns, and a pool of some of the examples."""
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=12, max_size=120)))
    pool = np.array(draw(st.permutations(range(len(labels)))))[: draw(st.integers(8, len(labels)))]
    writers = draw(st.lists(st.sampled_from("abcde"), min_size=len(labels), max_size=len(labels)))
    columns = {"writer": np.array(writers), "family": labels // 3}
    request = draw(st.builds(*SCHEMES[scheme]))
    if draw(st.booleans()):
        request = Rotated(request, alpha=draw(st.none() | alphas))
    if draw(st.booleans()):
        request = LabelPermuted(request, draw(st.integers(1, 5)))
    return request, labels, pool, columns


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@few
@given(data=st.data(), seed=seeds)
def test_what_every_scheme_promises(scheme, data, seed):
    request, labels, pool, columns = data.draw(problems(scheme))
    assert from_dict(to_dict(request)) == request
    try:
        part = deal(request, labels, seed, pool, CLASSES, **columns)
    except ValueError as error:
        assert re.search(r"only \d|fewer than \d", str(error)), error
        return
    everyone = part.flat
    assert len(np.unique(everyone)) == len(everyone) and set(everyone) <= set(pool.tolist())
    assert np.all(part.sizes >= 1)
    again = deal(request, labels.tolist(), seed, pool, CLASSES, **columns)
    assert printed(again) == printed(part)
    if isinstance(request, LabelPermuted):
        check_permutations(request, part, seed)
        request = request.of
    if isinstance(request, Rotated):
        check_angles(request, part)
        request = request.of
    check_sizes(request, part, labels, pool, columns)


def check_sizes(request, part, labels, pool, columns):
    n, sizes = len(pool), part.sizes
    if isinstance(request, NaturalPartition):
        own = {w: sorted(p for p in pool if columns["writer"][p] == w) for w in "abcde"}
        own = {w: mine for w, mine in own.items() if mine}
        assert part.clients == (request.clients or len(own))
        assert [row for row in own.values() if row in rows(part)] == rows(part)
    elif isinstance(request, QuantitySkew | ClassDirichlet):
        assert len(sizes) == request.clients and sizes.sum() == n
        assert request.least is None or sizes.min() >= request.least
    else:
        shards = getattr(request, "shards", 1)
        each = getattr(request, "size", None) or n // (request.clients * shards) * shards
        assert sizes.tolist() == [each] * request.clients


def check_angles(request, part):
    angles = part.side["angle"]
    assert angles.min() >= 0 and angles.max() < len(request.angles)
    if request.alpha is None:
        for i, row in enumerate(np.split(angles, part.starts[1:-1])):
            assert set(row) == {i * len(request.angles) // part.clients}


def check_permutations(request, part, seed):
    tables = request.tables(seed, CLASSES)
    assert tables.shape == (request.permutations, CLASSES) and np.all(tables[0] == range(CLASSES))
    assert np.all(np.sort(tables, 1) == range(CLASSES))
    assert len(np.unique(tables, axis=0)) == len(tables)
    which = part.side["permutation"]
    assert which.min() >= 0 and which.max() < request.permutations
    assert all(len(set(row)) == 1 for row in np.split(which, part.starts[1:-1]))


AROUND = [Rotated(IID(5)), LabelPermuted(IID(5), 9)]
DRAWN = zip([*REQUESTS, *AROUND], GOLDEN["draws"]["schemes"], strict=True)


@pytest.mark.parametrize(("request_", "golden"), DRAWN)
def test_the_seed_and_nothing_else_changes_the_draw(request_, golden):
    """If a golden one changes, so does every partition that stored results were made from."""
    labels, found = balanced(10, 100), []
    for seed in (0, 0, 1, 2):
        np.random.seed(len(found))  # noqa: NPY002 - it must not matter
        columns = {"writer": np.arange(1000) % 20, "family": labels // 2}
        found.append(printed(deal(request_, labels, seed, **columns)))
    assert found[0] == found[1] and len({*found}) == 3 and found[0][:12] == golden


@pytest.mark.parametrize("scheme", [Dirichlet, Pachinko])
def test_clients_before_a_class_runs_out_do_not_depend_on_how_many_follow(scheme):
    labels = balanced(20, 1000)
    three, five = (deal(scheme(n, size=50), labels, 7, coarse_label=labels // 4) for n in (3, 5))
    assert rows(three) == rows(five)[:3]


@few
@given(st.integers(1, 12), st.integers(1, 100), st.integers(0, 100), seeds)
@example(clients=1, size=100, percent=58, seed=0)
def test_majority_classes_make_up_their_fraction(clients, size, percent, seed):
    labels = balanced(5, 1000)
    counts = deal(MajorityClasses(clients, size, percent / 100), labels, seed).counts(labels, 5)
    half = percent * size // 200  # in whole numbers: 0.58 * 100 / 2 is 29
    for row in counts.tolist():
        assert sum(n == half for n in row) >= 2 or half == 0
        assert sum(row) == size


def test_two_clients_with_disjoint_pairs_by_hand():
    labels = balanced(4, 10)
    first, second = deal(MajorityClasses(2, 10, 0.8, "disjoint"), labels).counts(labels, 4).tolist()
    assert sum(first) == sum(second) == 10 and first.count(4) == second.count(4) == 2
    assert all(4 in pair for pair in zip(first, second, strict=True))


def test_shards_hold_few_classes():
    labels = balanced(10, 600)
    part = deal(Shards(20, 2), labels)
    counts = part.counts(labels, 10)
    assert np.all(counts % 150 == 0) and np.all(counts.sum(1) == 300)
    assert np.unique(part.flat).size == 6000
    assert len({tuple(row) for row in counts.tolist()}) > 10  # dealt at random
    ragged = [1, 0, 1, 0, 0, 1, 1, 0, 0]  # one of nine is left out
    counts = deal(Shards(2, 2), ragged, 3).counts(ragged, 2)
    assert counts.sum(1).tolist() == [4, 4] and counts.max() <= 4
    assert counts.sum(0).tolist() in ([4, 4], [5, 3])


@pytest.mark.slow
def test_pachinko_has_the_distribution_of_one_draw_at_a_time():
    """The last client, which gets what the others left, against the procedure as published."""
    labels, runs, clients, size = np.repeat(np.arange(5), 4), 1500, 3, 6
    family = np.array([0, 0, 1, 1, 1])
    rng = np.random.default_rng(0)
    fast, slow = np.zeros((runs, 5)), np.zeros((runs, 5))
    for run in range(runs):
        request = Pachinko(clients, size, 0.5, 1.0, "family")
        fast[run] = deal(request, labels, run, family=family[labels]).counts(labels, 5)[-1]
        left = np.full(5, 4)
        for _ in range(clients):
            root = rng.dirichlet([0.5, 0.5])
            below = [rng.dirichlet([1.0, 1.0]), rng.dirichlet([1.0, 1.0, 1.0])]
            mine = np.zeros(5)
            for _ in range(size):
                alive = root * [left[:2].sum() > 0, left[2:].sum() > 0]
                coarse = rng.choice(2, p=alive / alive.sum())
                members = np.flatnonzero(family == coarse)
                shares = below[coarse] * (left[members] > 0)
                fine = rng.choice(members, p=shares / shares.sum())
                left[fine] -= 1
                mine[fine] += 1
        slow[run] = mine

    def statistics(x):
        coarse = x[:, :2].sum(1)
        return coarse, x[:, 0], x.max(1), x[:, 2:].max(1), (coarse - 2.4) ** 2

    for one, other in zip(statistics(fast), statistics(slow), strict=True):
        error = np.sqrt((one.var() + other.var()) / runs)
        assert abs(one.mean() - other.mean()) < 4 * error


def angle_shares(part):
    each = np.split(part.side["angle"], part.starts[1:-1])
    return np.array([np.bincount(row, minlength=8) / len(row) for row in each])


def test_another_part_has_the_same_client_but_other_draws():
    request, labels = LabelPermuted(Rotated(IID(60))), balanced(10, 6000)
    train = deal(request, labels)
    other = request.side(deal(IID(60), labels), "test", 0, 10)
    assert np.array_equal(train.side["permutation"], other.side["permutation"])
    assert not np.array_equal(train.side["angle"], other.side["angle"])
    one, two = angle_shares(train), angle_shares(other)
    error = np.sqrt((one * (1 - one) + two * (1 - two)) / 1000) + 1e-3
    assert (np.abs(one - two) / error).max() < 4.5
    fewer = request.side(deal(IID(4, 1000), labels), "train", 0, 10)
    assert np.array_equal(train.side["angle"][:4000], fewer.side["angle"]), "whoever else is there"


def test_tables_of_permutations_are_all_there_are_and_do_not_depend_on_how_many():
    assert len(LabelPermuted(IID(), 6).tables(0, 3)) == 6  # all that there are
    two, four = (LabelPermuted(IID(), n).tables(5, 10) for n in (2, 4))
    assert np.array_equal(two, four[:2])


def test_a_repeated_deal_is_several_deals():
    whose = {"writer_id": [0, 0, 0, 1, 1]}
    part = deal(RepeatedPartition(Rotated(NaturalPartition()), 3), [0] * 5, **whose)
    assert rows(part) == [[0, 1, 2], [3, 4]] * 3 and set(part.side) == {"angle"}
    labels = balanced(4, 25)
    one, two = deal(IID(5), labels), deal(RepeatedPartition(IID(5)), labels)
    assert rows(two)[:5] == rows(one) != rows(two)[5:]
    assert sorted(two.flat[100:].tolist()) == list(range(100))


@pytest.mark.parametrize("name", GOLDEN["published"])
def test_published_sizes(name):
    counts, of = GOLDEN["counts"][name], GOLDEN["published"][name]
    counts, request = np.repeat(*counts), ClassDirichlet(shared=of["percent"] / 100)
    labels = np.repeat(np.arange(len(counts)), counts)
    part = deal(request, labels, classes=len(counts))
    assert part.sizes.tolist()[: len(of["sizes"])] == of["sizes"]
    assert (part.counts(labels, len(counts)) > 0).sum(1).mean() == pytest.approx(of["spread"])
    kept, held = request.split_off(examples(labels, None, len(counts)), 0, 0.25)
    assert held.sizes.sum() == of["tested"]
    assert kept.sizes.tolist() == [int(0.75 * n) for n in part.sizes]
    assert len(np.unique(part.flat)) == len(labels) == part.sizes.sum()
    if name == "cifar10":
        first = part.counts(labels, 10)[0]
        assert first.tolist() == [0, 9, 0, 668, 476, 287, 5, 167, 0, 9]


def loop(labels, clients, alpha, shared, least, seed):
    """The recipe of PFLlib in the plainest words, one example at a time; (rows, train, test)."""
    state, rows = np.random.RandomState(seed), [[]]
    while min(len(row) for row in rows) < least or len(rows) < clients:
        rows = [[] for _ in range(clients)]
        for label in range(max(labels) + 1):
            mine = np.array([i for i, c in enumerate(labels) if c == label], int)
            state.shuffle(mine)
            common = mine[: int(shared * len(mine))]
            for i, one in enumerate(common):
                each = len(common) // clients
                rows[min(i // each, clients - 1) if each else clients - 1].append(one)
            shares = state.dirichlet([alpha] * clients)
            for client in range(clients):
                if len(rows[client]) >= len(labels) / clients:
                    shares[client] = 0
            shares = shares / shares.sum()
            rest = mine[len(common) :]
            cuts = [0, *(int(cut * len(rest)) for cut in np.cumsum(shares)[:-1]), len(rest)]
            for client in range(clients):
                rows[client] += rest[cuts[client] : cuts[client + 1]].tolist()
    parts = [train_test_split(row, train_size=0.75, random_state=state) for row in rows]
    return rows, [part[0] for part in parts], [part[1] for part in parts]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3), min_size=40, max_size=120).filter(lambda y: len(set(y)) == 4),
    st.integers(1, 4), st.sampled_from([0.5, 1.0, 10.0]), st.sampled_from([0.0, 0.2, 0.5]), seeds,
)  # fmt: skip
def test_every_example_goes_where_a_plain_loop_puts_it(labels, clients, alpha, shared, seed):
    whole, train, test = loop(labels, clients, alpha, shared, 2, seed)
    request = ClassDirichlet(clients, alpha, shared, least=2, seed=None)
    assert rows(deal(request, labels, seed)) == [sorted(row) for row in whole]
    here = SimpleNamespace(labels=np.array(labels[:30]), columns={})
    there = SimpleNamespace(labels=np.array(labels[30:]), columns={})
    parts = divide(request, LocalHoldout(merge=True), here, there, 4, seed).parts
    for i in range(clients):
        mine = [*parts["train"].client(i), *parts["validation"].client(i)]
        assert sorted(mine) == sorted(train[i])
        assert parts["test"].client(i).tolist() == sorted(test[i])


def test_the_seed_is_the_requests_own_unless_it_has_none():
    labels = balanced(10, 100)
    one, own = (
        [printed(deal(ClassDirichlet(5, **how), labels, seed)) for seed in (0, 1)]
        for how in ({}, {"seed": None})
    )
    assert one[0] == one[1] == own[1] != own[0]


@pytest.mark.parametrize("alpha", [1e-300, 1e-4])
def test_a_vanishing_alpha_gives_each_class_to_one_hungry_client(alpha):
    labels = np.repeat([0, 2, 4], 100)  # nothing of classes 1, 3 and 5
    counts = deal(ClassDirichlet(3, alpha, least=90), labels, classes=6).counts(labels, 6)
    assert np.sort(counts[:, ::2], 0).tolist() == [[0] * 3, [0] * 3, [100] * 3]
    assert counts.sum(1).tolist() == [100] * 3
