"""Partitions: the table, the draws that schemes share, and what all of them refuse."""

import dataclasses

import numpy as np
import pytest
from dealing import balanced, deal, printed
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import partition
from fedlib.partition import (
    IID,
    ByColumn,
    ClassDirichlet,
    Clients,
    Dirichlet,
    LabelPermuted,
    Majority,
    Mirrored,
    Own,
    Pachinko,
    Partition,
    QuantitySkew,
    Repeated,
    Request,
    Rotated,
    Shards,
    holdout,
    mirrored,
)
from fedlib.partition.base import POSITIVE

few = settings(max_examples=40)
seeds = st.integers(0, 2**32)


@few
@given(st.lists(st.integers(0, 6), min_size=2, max_size=300), seeds, st.data())
def test_holdout_splits_every_class_in_proportion(labels, seed, data):
    labels = np.array(labels)
    size = data.draw(st.integers(0, len(labels) - 1))
    kept, held = holdout(labels, size, seed)
    assert len(held) == size
    assert np.array_equal(np.sort(np.r_[kept, held]), np.arange(len(labels)))
    assert np.all(np.diff(kept) > 0) and np.all(np.diff(held) > 0)
    exact = np.bincount(labels) * size / len(labels)
    assert np.all(np.abs(np.bincount(labels[held], minlength=len(exact)) - exact) < 1)


@few
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 30), seeds, st.data())
def test_mirrored_counts_follow_the_shares(clients, classes, size, seed, data):
    row = st.lists(st.integers(0, 9), min_size=classes, max_size=classes).filter(any)
    shares = np.array(data.draw(st.lists(row, min_size=clients, max_size=clients)))
    labels = balanced(classes, 60)
    pool = np.sort(np.concatenate([np.flatnonzero(labels == c)[:40] for c in range(classes)]))
    part = mirrored(labels, shares, size=size, seed=seed, pool=pool)
    assert np.all(part.sizes == size) and np.isin(part.index, pool).all()
    assert all(len(np.unique(row)) == size for row in part.index)
    exact = shares / shares.sum(1, keepdims=True) * size
    counts = part.counts(labels, classes)
    assert np.all(np.abs(counts - exact) < 1) and np.all(counts[shares == 0] == 0)


def test_mirrored_draws_of_a_client_do_not_depend_on_the_others():
    labels, shares = balanced(10, 100), np.random.default_rng(1).dirichlet(np.ones(10), 6)
    whole = mirrored(labels, shares, size=90, seed=3)
    few = mirrored(labels, np.r_[shares[:2], shares[:2]], size=90, seed=3)
    assert np.array_equal(few.index[:2], whole.index[:2])
    assert not np.array_equal(few.index[2:], few.index[:2])
    assert not np.array_equal(mirrored(labels, shares, size=90, seed=4).index, whole.index)


@pytest.mark.parametrize(("alpha", "low", "high"), [(1e5, 0.09, 0.17), (0.01, 0.95, 1.0)])
def test_alpha_decides_how_many_classes_a_client_has(alpha, low, high):
    """The overall shares, within five standard errors, or a single class."""
    labels = balanced(10, 5000)
    # A part of the examples: the last clients of a full deal get what the others left.
    shares = deal(Dirichlet(50, alpha, 500 if alpha > 1 else 300), labels).shares(labels, 10)
    assert low < np.median(shares.max(1)) <= high
    assert alpha < 1 or np.abs(shares - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 500)


def test_shares_have_the_spread_of_a_dirichlet():
    labels = balanced(10, 20_000)
    shares = deal(Dirichlet(300, 1.0, 200), labels).shares(labels, 10)
    spread = 0.1 * 0.9 / 11 + 0.1 * 0.9 / 200 * 10 / 11
    assert np.abs(shares.mean(0) - 0.1).max() < 4 * np.sqrt(spread / 300)
    assert shares.var() == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e300])
def test_extreme_alphas_deal_every_example(alpha):
    assert len(np.unique(deal(Dirichlet(10, alpha), balanced(10, 100)).index)) == 1000


def test_bulk_draws_have_the_distribution_of_single_draws():
    """The last client's counts against a client-by-client, example-by-example simulation."""
    labels, alpha, clients, size, runs = balanced(3, 6), 0.5, 3, 5, 1500
    fast, slow = np.zeros(3), np.zeros(3)
    rng = np.random.default_rng(0)
    for run in range(runs):
        fast += np.sort(deal(Dirichlet(clients, alpha, size), labels, run).counts(labels, 3)[-1])
        left = np.full(3, 6.0)
        for _ in range(clients):
            shares, mine = rng.dirichlet([alpha] * 3), np.zeros(3)
            for _ in range(size):
                now = shares * (left > 0)
                label = rng.choice(3, p=now / now.sum())
                left[label] -= 1
                mine[label] += 1
        slow += np.sort(mine)
    assert np.abs(fast - slow).max() / runs < 0.15


def test_prior_scales_the_concentration():
    labels = balanced(10, 1000)
    symmetric, proportional = (
        deal(Dirichlet(20, 1.0, prior=prior), labels).shares(labels, 10).max(1).mean()
        for prior in ("symmetric", "proportional")
    )
    assert proportional > symmetric + 0.2  # 0.1 per class instead of 1
    absent = deal(Dirichlet(5, 1.0, 100, "proportional"), labels % 2, classes=10)
    assert np.all(absent.counts(labels % 2, 10)[:, 2:] == 0)


def test_table_of_ragged_rows():
    part = Partition.from_lists([[3, 1], [], [0, 2, 5]])
    assert part.clients == 3 and part.sizes.tolist() == [2, 0, 3]
    assert part.index.tolist() == [[3, 1, -1], [-1, -1, -1], [0, 2, 5]]
    assert part.client(0).tolist() == [3, 1] and part.client(1).tolist() == []
    assert part.counts([0, 0, 1, 1, 0, 1], 2).tolist() == [[1, 1], [0, 0], [1, 2]]
    assert part.shares([0, 0, 1, 1, 0, 1], 2)[1].tolist() == [0, 0]
    assert repr(part) == "Partition(3 clients, 5 examples)"
    turned = Partition(part.index, part.sizes, {"angle": np.zeros((3, 3), int)})
    assert repr(turned) == "Partition(3 clients, 5 examples, with angle)"
    with pytest.raises(ValueError, match="read-only"):
        part.index[0, 0] = 9


@few
@given(st.lists(st.integers(0, 5), max_size=60), seeds)
def test_from_owners_is_a_loop_over_the_owners(owners, seed):
    positions = np.random.default_rng(seed).permutation(1000)[: len(owners)]
    lists = [[] for _ in range(7)]
    for position, owner in zip(positions, owners, strict=True):
        lists[owner].append(position)
    slow = Partition.from_lists(sorted(row) for row in lists)
    fast = Partition.from_owners(positions, np.array(owners, int), 7)
    assert np.array_equal(fast.index, slow.index) and np.array_equal(fast.sizes, slow.sizes)


def test_the_draws_that_stored_results_were_made_with():
    """If one of these changes, every result stored so far was made from another partition."""
    labels, other = balanced(10, 500), balanced(10, 100, seed=1)
    kept, held = holdout(labels, 500, 6)
    train = deal(Dirichlet(20, 0.5, 100), labels, 6, kept)
    shares = train.shares(labels, 10)
    uneven = Dirichlet(20, 0.1, 60, "proportional")
    prints = {
        "31decccfd89e7699": deal(Dirichlet(20, 0.5), labels, 3),
        "0e73d6960408917e": deal(uneven, labels, 4, np.arange(0, 5000, 2)),
        "2979f88717afdb2d": deal(IID(30, 40), labels, 5),
        "285b1009370c9b90": train,
        "3823ad50ad5cf36f": mirrored(labels, shares, size=20, seed=6, pool=held),
        "a5c7fcf00d6fc00a": mirrored(other, shares, size=30, seed=6),
    }
    assert [printed(part)[:16] for part in prints.values()] == list(prints)


@pytest.mark.parametrize(
    ("index", "sizes", "side", "message"),
    [
        ([[0, 1]], [1, 1], {}, "index must be"),
        ([[0, 1]], [3], {}, "then only -1"),
        ([[0, 1]], [1], {}, "then only -1"),
        ([[0, -2]], [1], {}, "then only -1"),
        ([[0, 1]], [2], {"angle": np.zeros(2)}, "side information as index"),
    ],
)
def test_tables_that_do_not_fit_together(index, sizes, side, message):
    with pytest.raises(ValueError, match=message):
        Partition(np.array(index), np.array(sizes), side)


LABELS = balanced(10, 50)
COLUMNS = {"coarse_label": LABELS // 2, "writer_id": np.repeat(np.arange(50), 10)}


def asked(request=None, labels=LABELS, **options):
    return lambda: deal(request or Dirichlet(5), labels, **{**COLUMNS, **options})


def mirror(shares, size):
    return lambda: mirrored(LABELS, np.array(shares), size=size, seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (asked(Dirichlet(501)), "501 clients x 1 examples: 501 needed, but only 500 "),
        (asked(Dirichlet(10, 1.0, 51)), "10 clients x 51 examples: 510 needed, but only 500 "),
        (asked(Dirichlet(501, size_alpha=1.0)), "501 needed, but only 500 "),
        (asked(pool=[]), "pool must be a list of whole numbers, one at least"),
        (asked(pool=[0.5]), "pool must be a list of whole numbers, .* not float64"),
        (asked(pool=[0, 500]), r"pool must lie in 0\.\.499, but lie in 0\.\.500"),
        (asked(pool=[1, 1]), "more than once"),
        (asked(classes=9), r"labels must lie in 0\.\.8, but lie in 0\.\.9"),
        (asked(labels=[]), "labels must be a list"),
        (asked(labels=[0.5]), "labels must be a list"),
        (asked(labels=[-1, 0]), r"lie in -1\.\.0"),
        (asked(seed=-1), "non-negative"),
        (mirror(np.eye(10)[:1], 51), "class 0 to mirror client 0 .*: 51 needed, but only 50 "),
        (mirror(np.ones((1, 9)), 10), r"0\.\.8"),
        (lambda: holdout(LABELS, 500, 0), "set 500 aside and keep one: 501 needed, but only 500"),
        (lambda: partition.balanced(LABELS, 510, 0), "class 0 .*: 51 needed, but only 50"),
        (lambda: partition.balanced(LABELS, 9, 0), "of each class: 10 needed, but only 9"),
        (asked(QuantitySkew(51)), "51 clients x 10 examples at least: 510 needed, but only 500"),
        (
            asked(QuantitySkew(50, 0.1)),
            r"in 1,000 tries to share 500 examples among 50 clients with alpha 0\.1, the smallest "
            "client had 0 at most, but should have 10",
        ),
        (asked(Majority(10, 100, 1.0)), r"class \d for all clients: \d+ needed, but only 50"),
        (
            asked(Majority(2, 250, 0.0, "disjoint")),
            r"client 1, not of its classes \[\d, \d\]: 250 needed, but only \d+ ",
        ),
        (asked(Majority(6, 5, 0.8, "disjoint")), "classes for 6 disjoint pairs: 12 needed, .* 10"),
        (asked(Majority(1, 1), [0, 0]), "pairs: 2 needed, but only 1 "),
        (asked(Shards(251, 2)), "251 clients x 2 shards of an example: 502 needed, .* 500 "),
        (asked(Pachinko(10, 51)), "10 clients x 51 examples: 510 needed, but only 500"),
        (
            asked(Pachinko(10, 5, coarse="coarse")),
            "column 'coarse'; allowed: coarse_label, writer_id; did you mean 'coarse_label'",
        ),
        (asked(Pachinko(10, 5, coarse="writer_id")), "a class has more than one value .*'writer_i"),
        (asked(ByColumn(clients=51)), "'writer_id' with 1 examples or more: 51 needed, .* 50 "),
        (asked(ByColumn(least=11)), "with 11 examples or more: 1 needed, but only 0"),
        (asked(LabelPermuted(IID(), 10**7)), "of 10 classes: 10,000,000 needed, .* 3,628,800"),
        (asked(Clients(IID(5), 0, 6)), r"clients of IID\(clients=5\): 6 needed, but only 5"),
        (asked(ClassDirichlet(10, least=51)), "10 clients x 51 examples at least: 510 needed"),
        (lambda: deal(ByColumn(), LABELS), "unknown column 'writer_id'"),
    ],
    ids=range(33),
)
def test_the_impossible_is_refused_with_the_numbers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


KINDS = (
    Dirichlet, IID, QuantitySkew, Majority, Shards, Pachinko, ByColumn, ClassDirichlet, Rotated,
    LabelPermuted, Repeated, Mirrored,
)  # fmt: skip
FIELDS = [
    (kind, field.name)
    for kind in KINDS
    for field in dataclasses.fields(kind)
    if field.name in {*POSITIVE, "pool", "validation", "test"}
]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
@pytest.mark.parametrize("wrong", [0, -1])
def test_amounts_are_above_zero(kind, name, wrong):
    around = {"of": IID()} if "of" in kind.__dataclass_fields__ else {}
    assert len(FIELDS) == 28
    with pytest.raises(ValueError, match=rf"{name} must be above 0, not {wrong}"):
        kind(**around, **{name: wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(prior="symetric"), "unknown prior 'symetric'"),
        (lambda: Majority(p=1.1), r"p must lie in \[0, 1\], not 1\.1"),
        (lambda: Majority(pairs="cartesien"), "unknown pairs 'cartesien'.*'cartesian'"),
        (lambda: ClassDirichlet(shared=1.0), r"shared must lie in \[0, 1\), not 1\.0"),
        (lambda: ClassDirichlet(seed=-1), r"seed must lie in 0\.\.4294967295, not -1"),
        (lambda: ClassDirichlet(seed=2**32), "not 4294967296"),
        (lambda: Rotated(IID(), ()), "angles must be"),
        (lambda: Rotated(IID(), (0, 360)), r"angles .* not \(0\.0, 360\.0\)"),
        (lambda: Rotated(LabelPermuted(Rotated(IID()))), "Rotated is already around Label"),
        (lambda: Own(0.0), r"test must lie in \(0, 1\), not 0\.0"),
        (lambda: Own(1.0), r"test must lie in \(0, 1\), not 1\.0"),
        (lambda: Own(validation=-0.1), r"validation must lie in \[0, 1\), not -0\.1"),
        (lambda: Own(train=0.0), r"train must lie in \(0, 1\], not 0\.0"),
        (lambda: Own(train=1.5), "train must lie in"),
        (lambda: Own(train=float("nan")), r"Own\.train must be finite"),
        (lambda: Mirrored(source="tset"), "unknown source 'tset'.*'test'"),
    ],
    ids=range(16),
)
def test_a_value_is_checked_when_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_around_a_request_is_one():
    with pytest.raises(TypeError, match=r"Rotated\.of must be Request, got 'IID'"):
        Rotated("IID")
    with pytest.raises(NotImplementedError, match="Request does not say how"):
        deal(Request(), [0])
