"""Partitions: the promises of each sampler, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.partition import IID, Dirichlet, Partition, holdout, mirrored
from fedlib.values import from_dict, to_dict

few = settings(max_examples=40)
seeds = st.integers(0, 2**32)


def balanced(classes, each, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))


def dealt(labels, *request, seed=0, **options):
    """A `Dirichlet` partition of all examples."""
    return Dirichlet(*request, **options).split(labels, None, seed)


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
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 50), seeds, st.data())
def test_mirrored_counts_follow_the_shares(clients, classes, size, seed, data):
    rows = st.lists(st.integers(0, 9), min_size=classes, max_size=classes).filter(any)
    shares = np.array(data.draw(st.lists(rows, min_size=clients, max_size=clients)))
    labels = balanced(classes, 60)
    part = mirrored(labels, shares, size=size, seed=seed)
    assert np.all(part.sizes == size)
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


def test_mirrored_takes_from_the_pool_only():
    labels, pool = balanced(4, 100), np.arange(0, 400, 2)
    part = mirrored(labels, np.ones((3, 4)), size=40, seed=0, pool=pool)
    assert np.all(part.index % 2 == 0)


@pytest.mark.parametrize(("alpha", "low", "high"), [(1e5, 0.09, 0.17), (0.01, 0.95, 1.0)])
def test_alpha_decides_how_many_classes_a_client_has(alpha, low, high):
    """The overall shares, within five standard errors, or a single class."""
    labels = balanced(10, 5000)
    # A part of the examples: the last clients of a full deal get what the others left.
    shares = dealt(labels, 50, alpha, 500 if alpha > 1 else 300).shares(labels, 10)
    assert low < np.median(shares.max(1)) <= high
    assert alpha < 1 or np.abs(shares - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 500)


def test_shares_have_the_spread_of_a_dirichlet():
    labels, concentration = balanced(10, 20_000), 1.0
    part = dealt(labels, 300, concentration, 200)
    shares = part.shares(labels, 10)
    total = 10 * concentration
    spread = 0.1 * 0.9 / (total + 1) + 0.1 * 0.9 / 200 * total / (total + 1)
    assert np.abs(shares.mean(0) - 0.1).max() < 4 * np.sqrt(spread / 300)
    assert shares.var() == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e300])
def test_extreme_alphas_deal_every_example(alpha):
    labels = balanced(10, 100)
    assert len(np.unique(dealt(labels, 10, alpha).index)) == 1000


def test_bulk_draws_have_the_distribution_of_single_draws():
    """The last client's counts against a client-by-client, example-by-example simulation."""
    labels, alpha, clients, size, runs = balanced(3, 6), 0.5, 3, 5, 1500
    fast, slow = np.zeros(3), np.zeros(3)
    rng = np.random.default_rng(0)
    for run in range(runs):
        part = dealt(labels, clients, alpha, size, seed=run)
        fast += np.sort(part.counts(labels, 3)[-1])
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


def test_clients_before_a_class_runs_out_do_not_depend_on_how_many_follow():
    labels = balanced(10, 1000)
    three, five = (dealt(labels, n, 1.0, 50, seed=7) for n in (3, 5))
    assert np.array_equal(three.index, five.index[:3])


def test_paper_setting_is_fast_and_exact():
    labels = balanced(10, 5000)
    kept, held = holdout(labels, 5000, seed=0)
    part = Dirichlet(clients=100, alpha=1.0).split(labels, kept, 0, 10)
    assert part.index.shape == (100, 450) and not np.isin(part.index, held).any()
    assert repr(part) == "Partition(100 clients, 450 each)"


def test_prior_scales_the_concentration():
    labels = balanced(10, 1000)
    symmetric, proportional = (
        Dirichlet(20, 1.0, prior=prior).split(labels, None, 0, 10).shares(labels, 10).max(1).mean()
        for prior in ("symmetric", "proportional")
    )
    assert proportional > symmetric + 0.2  # 0.1 per class instead of 1
    absent = Dirichlet(5, 1.0, 100, "proportional").split(labels % 2, None, 0, 10)
    assert np.all(absent.counts(labels % 2, 10)[:, 2:] == 0)


def test_table_of_ragged_rows():
    part = Partition.from_lists([[3, 1], [], [0, 2, 5]])
    assert part.clients == 3 and part.sizes.tolist() == [2, 0, 3]
    assert part.index.tolist() == [[3, 1, -1], [-1, -1, -1], [0, 2, 5]]
    assert part.client(0).tolist() == [3, 1] and part.client(1).tolist() == []
    assert part.counts([0, 0, 1, 1, 0, 1], 2).tolist() == [[1, 1], [0, 0], [1, 2]]
    assert part.shares([0, 0, 1, 1, 0, 1], 2)[1].tolist() == [0, 0]
    assert repr(part) == "Partition(3 clients, 0..3 each, 1.7 on average)"
    with pytest.raises(ValueError, match="read-only"):
        part.index[0, 0] = 9
    for i in (3, -1):
        with pytest.raises(IndexError, match=r"0\.\.2"):
            part.client(i)


def test_fingerprint_sees_side_information_but_no_padding():
    angles = np.arange(6).reshape(2, 3)
    plain = Partition(np.array([[0, 1, -1], [2, 3, 4]]), np.array([2, 3]))
    part = plain.with_side("angle", angles)
    assert plain.fingerprint() != part.fingerprint() and not plain.side
    assert (
        part.fingerprint()
        == plain.with_side("angle", angles * [[1, 1, 9], [1, 1, 1]]).fingerprint()
    )
    assert repr(part) == "Partition(2 clients, 2..3 each, 2.5 on average, with angle)"
    wider = Partition(np.c_[plain.index, [-1, -1]], plain.sizes)
    assert wider.fingerprint() == plain.fingerprint()


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
    train = Dirichlet(20, 0.5, 100).split(labels, kept, 6, 10)
    shares = train.shares(labels, 10)
    every_second = np.arange(0, 5000, 2)
    prints = [
        Dirichlet(20, 0.5).split(labels, None, 3, 10),
        Dirichlet(20, 0.1, 60, "proportional").split(labels, every_second, 4, 10),
        IID(30, 40).split(labels, None, 5, 10),
        train,
        mirrored(labels, shares, size=20, seed=6, pool=held),
        mirrored(other, shares, size=30, seed=6),
    ]
    assert [part.fingerprint()[:16] for part in prints] == [
        "31decccfd89e7699",
        "0e73d6960408917e",
        "2979f88717afdb2d",
        "285b1009370c9b90",
        "3823ad50ad5cf36f",
        "a5c7fcf00d6fc00a",
    ]


@pytest.mark.parametrize(
    ("index", "sizes", "side", "message"),
    [
        ([[0, 1]], [1, 1], {}, "must be"),
        ([[0, 1]], [3], {}, r"0\.\.2"),
        ([[0, 1]], [1], {}, "then only -1"),
        ([[0, -2]], [1], {}, "then only -1"),
        ([[0, 1]], [2], {"angle": np.zeros(2)}, "angle"),
    ],
)
def test_tables_that_do_not_fit_together(index, sizes, side, message):
    with pytest.raises(ValueError, match=message):
        Partition(np.array(index), np.array(sizes), side)


LABELS = balanced(10, 5000)


def split(request=None, labels=LABELS, pool=None, seed=0, classes=None):
    return (request or Dirichlet(100)).split(labels, pool, seed, classes)


def mirror(shares, size):
    return mirrored(LABELS, shares, size=size, seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(alpha=0.0), "alpha .* above 0, not 0"),
        (lambda: Dirichlet(alpha=-1.0), "not -1.0"),
        (lambda: Dirichlet(clients=0), "clients must be .* at least 1, not 0"),
        (lambda: Dirichlet(size=0), "size must be .* at least 1, not 0"),
        (lambda: Dirichlet(prior="symetric"), "symetric"),
        (lambda: IID(0), "clients"),
        (lambda: split(Dirichlet(60_000)), "50,000 examples, not 60,000"),
        (lambda: split(Dirichlet(100, 1.0, 600)), "100 clients x 600 examples = 60,000"),
        (lambda: split(pool=[]), "pool is empty"),
        (lambda: split(pool=[0, 50_000]), r"0\.\.49999"),
        (lambda: split(pool=[1, 1]), "more than once"),
        (lambda: split(pool=[0.5]), "integer positions"),
        (lambda: split(classes=9), r"labels must lie in 0\.\.8, but one is 9"),
        (lambda: split(labels=[]), "non-empty"),
        (lambda: split(labels=[0.5]), "integers"),
        (lambda: split(labels=[-1, 0]), "one is -1"),
        (lambda: split(seed=-1), "seed .* not -1"),
        (lambda: mirror(np.eye(10)[:1], 5001), "client 0 needs 5,001 .* class 0 .* only 5,000"),
        (lambda: mirror(np.zeros((2, 10)), 10), "client 0 has no label shares"),
        (lambda: mirror(np.full((2, 10), np.nan), 10), "finite"),
        (lambda: mirror(np.ones(10), 10), "clients, classes"),
        (lambda: mirror(np.ones((1, 10)), 0), "size"),
        (lambda: mirror(np.ones((1, 9)), 10), r"0\.\.8"),
        (lambda: holdout(LABELS, 50_000, 0), "below the 50,000"),
        (lambda: Partition.from_lists([[5]]).counts([0, 1], 2), "only 2 labels"),
    ],
    ids=range(25),
)
def test_the_impossible_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", [Dirichlet(), Dirichlet(7, 0.5, 3, "proportional"), IID(5, 2)])
def test_requests_print_as_code_and_survive_storage(value):
    assert eval(repr(value)) == value == from_dict(to_dict(value))
    assert repr(Dirichlet(alpha=2)) == repr(Dirichlet(alpha=2.0)) == "Dirichlet(alpha=2.0)"
