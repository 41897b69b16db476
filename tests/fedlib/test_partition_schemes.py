"""Every scheme of dealing: what all promise, what each promises, and what it refuses."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import values
from fedlib.partition import (
    IID,
    ByColumn,
    ClassDirichlet,
    Dirichlet,
    LabelPermuted,
    Majority,
    Pachinko,
    QuantitySkew,
    Repeated,
    Request,
    Rotated,
    Shards,
)
from fedlib.values import from_dict, to_dict, value

few = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
alphas = st.floats(1e-3, 1e3)
CLASSES = 7


def balanced(classes, each, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))


def held(part):
    return part.index[part.index >= 0]


# For every scheme: requests that can be met with n examples, or are refused with the numbers.
SCHEMES = {
    "Dirichlet": lambda n: st.integers(1, n).flatmap(
        lambda clients: st.builds(
            Dirichlet, st.just(clients), alphas, st.none() | st.integers(1, n // clients),
            st.sampled_from(["symmetric", "proportional"]),
        )
    ),
    "Dirichlet, unequal": lambda n: st.builds(
        Dirichlet, st.integers(1, n), alphas, size_alpha=alphas
    ),
    "IID": lambda n: st.integers(1, n).flatmap(
        lambda clients: st.builds(IID, st.just(clients), st.none() | st.integers(1, n // clients))
    ),
    "QuantitySkew": lambda n: st.builds(
        QuantitySkew, st.integers(1, 4), st.floats(0.5, 9), st.integers(1, 3)
    ),
    "ClassDirichlet": lambda n: st.builds(
        ClassDirichlet, st.integers(1, 4), st.floats(0.1, 9), st.sampled_from([0.0, 0.2, 0.9]),
        st.none() | st.integers(1, 3), st.none() | st.just(1),
    ),
    "Majority": lambda n: st.builds(
        Majority, st.integers(1, 4), st.integers(1, n // 2), st.floats(0, 1),
        st.sampled_from(["distinct", "cartesian", "disjoint"]),
    ),
    "Shards": lambda n: st.builds(Shards, st.integers(1, n), st.integers(1, 3)),
    "Pachinko": lambda n: st.integers(1, n).flatmap(
        lambda clients: st.builds(
            Pachinko, st.just(clients), st.integers(1, n // clients), alphas, alphas,
            st.just("family"),
        )
    ),
    "ByColumn": lambda n: st.builds(
        ByColumn, st.just("writer"), st.none() | st.integers(1, 3), st.integers(1, 3)
    ),
}  # fmt: skip


@st.composite
def problems(draw, scheme):
    """A request, labels with other columns, and a pool of some of the examples."""
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=12, max_size=120)))
    pool = np.array(draw(st.permutations(range(len(labels)))))[: draw(st.integers(8, len(labels)))]
    writers = draw(st.lists(st.sampled_from("abcde"), min_size=len(labels), max_size=len(labels)))
    columns = {"writer": np.array(writers), "family": labels // 3}
    request = draw(SCHEMES[scheme](len(pool)))
    if draw(st.booleans()):
        request = Rotated(request, alpha=draw(st.none() | alphas))
    if draw(st.booleans()):
        request = LabelPermuted(request, draw(st.integers(1, 5)))
    return request, labels, pool, columns


@pytest.mark.parametrize("scheme", SCHEMES)
@few
@given(data=st.data(), seed=seeds)
def test_what_every_scheme_promises(scheme, data, seed):
    request, labels, pool, columns = data.draw(problems(scheme))
    assert from_dict(to_dict(request)) == request
    try:
        part = request.split(labels, pool, seed, CLASSES, columns)
    except ValueError as error:
        assert re.search(r"only \d|should have \d", str(error)), error
        assert scheme in {
            "QuantitySkew", "ClassDirichlet", "Majority", "Shards", "ByColumn",
        }  # fmt: skip
        return
    everyone = held(part)
    assert len(np.unique(everyone)) == len(everyone) and set(everyone) <= set(pool.tolist())
    assert np.all(part.sizes >= 1)
    again = request.split(labels.tolist(), pool, seed, CLASSES, columns)
    assert again.fingerprint() == part.fingerprint()
    if isinstance(request, LabelPermuted):
        check_permutations(request, part, seed)
        request = request.of
    if isinstance(request, Rotated):
        check_angles(request, part)
        request = request.of
    check_sizes(request, part, labels, pool, columns)


def check_sizes(request, part, labels, pool, columns):
    n, sizes = len(pool), part.sizes
    if isinstance(request, Dirichlet | IID):
        each = n // request.clients if request.size is None else request.size
        equal = getattr(request, "size_alpha", None) is None
        assert len(sizes) == request.clients
        assert np.all(sizes == each) if equal else sizes.sum() == n
    elif isinstance(request, QuantitySkew | ClassDirichlet):
        assert len(sizes) == request.clients and sizes.sum() == n
        assert request.least is None or sizes.min() >= request.least
    elif isinstance(request, Majority | Pachinko):
        assert sizes.tolist() == [request.size] * request.clients
    elif isinstance(request, Shards):
        each = n // (request.clients * request.shards) * request.shards
        assert sizes.tolist() == [each] * request.clients
    elif isinstance(request, ByColumn):
        own = {w: sorted(p for p in pool if columns["writer"][p] == w) for w in "abcde"}
        own = {w: mine for w, mine in own.items() if len(mine) >= request.least}
        rows = [part.client(i).tolist() for i in range(part.clients)]
        assert len(rows) == (request.clients or len(own))
        assert [row for row in own.values() if row in rows] == rows


def check_angles(request, part):
    angles = part.side["angle"]
    assert angles.min() >= 0 and angles.max() < len(request.angles)
    if request.alpha is None:
        for i, (row, size) in enumerate(zip(angles, part.sizes, strict=True)):
            assert set(row[:size]) == {i * len(request.angles) // part.clients}


def check_permutations(request, part, seed):
    tables = request.tables(seed, CLASSES)
    assert tables.shape == (request.permutations, CLASSES) and np.all(tables[0] == range(CLASSES))
    assert np.all(np.sort(tables, 1) == range(CLASSES))
    assert len(np.unique(tables, axis=0)) == len(tables)
    which = part.side["permutation"]
    assert which.min() >= 0 and which.max() < request.permutations
    assert all(len(set(row[:n])) == 1 for row, n in zip(which, part.sizes, strict=True))


@pytest.mark.parametrize(
    "request_",
    [
        Dirichlet(5),
        Dirichlet(5, size_alpha=2.0),
        IID(5),
        QuantitySkew(5),
        ClassDirichlet(5, seed=None),
        Majority(5, 20),
        Shards(5),
        Pachinko(5, 50, coarse="family"),
        ByColumn("writer", clients=5),
        Rotated(IID(5)),
        LabelPermuted(IID(5), 9),
    ],
    ids=repr,
)
def test_the_seed_and_nothing_else_changes_the_draw(request_):
    labels = balanced(10, 100)
    columns = {"writer": np.arange(1000) % 20, "family": labels // 2}

    def prints(seed):
        return request_.split(labels, None, seed, 10, columns).fingerprint()

    np.random.seed(0)  # noqa: NPY002 - it must not matter
    first = prints(0)
    np.random.seed(1)  # noqa: NPY002
    assert first == prints(0) and len({first, prints(1), prints(2)}) == 3


# --- unequal sizes ---


def test_unequal_sizes_follow_one_dirichlet_draw():
    labels, clients = balanced(10, 20_000), 400
    for alpha in (0.5, 5.0):
        sizes = Dirichlet(clients, 1.0, size_alpha=alpha).split(labels, None, 0, 10).sizes
        assert sizes.sum() == len(labels) and sizes.min() >= 1
        spread = (1 - 1 / clients) / clients / (clients * alpha + 1)
        # A gamma's excess kurtosis is 6 / alpha: four standard errors of a variance.
        error = 4 * np.sqrt((2 + 6 / alpha) / clients)
        assert (sizes / len(labels)).var() == pytest.approx(spread, rel=error)
    small = Dirichlet(clients, 1.0, 20, size_alpha=0.1).split(labels, None, 0, 10)
    assert small.sizes.sum() == 20 * clients and small.sizes.max() > 200


def test_quantity_skew_has_the_spread_of_a_dirichlet_and_no_label_skew():
    labels, clients = balanced(10, 20_000), 200
    part = QuantitySkew(clients, alpha=2.0, least=1).split(labels, None, 0, 10)
    spread = (1 - 1 / clients) / clients / (clients * 2.0 + 1)
    error = 4 * np.sqrt((2 + 6 / 2.0) / clients)
    assert (part.sizes / len(labels)).var() == pytest.approx(spread, rel=error)
    scores = (part.shares(labels, 10) - 0.1) / np.sqrt(0.09 / part.sizes)[:, None]
    assert np.abs(scores).max() < 4.5 and scores.std() == pytest.approx(1, abs=0.1)


def test_quantity_skew_redraws_until_everyone_has_enough():
    labels = balanced(2, 500)
    assert QuantitySkew(10, 0.5, least=1).split(labels, None, 0, 2).sizes.min() < 10
    assert QuantitySkew(10, 0.5, least=10).split(labels, None, 0, 2).sizes.min() >= 10


def test_iid_clients_have_the_shares_of_the_pool():
    labels = balanced(10, 5000)
    shares = IID(50).split(labels, None, 0, 10).shares(labels, 10)
    assert np.abs(shares - 0.1).max() < 4.5 * np.sqrt(0.09 / 1000)


# --- majority pairs and shards ---


@few
@given(
    st.integers(1, 12), st.integers(1, 40), st.integers(0, 20), seeds,
    st.sampled_from(["distinct", "cartesian"]),
)  # fmt: skip
def test_majority_classes_make_up_their_fraction(clients, size, twentieths, seed, pairs):
    labels, p = balanced(5, 400), twentieths / 20
    counts = Majority(clients, size, p, pairs).split(labels, None, seed, 5).counts(labels, 5)
    half = twentieths * size // 40  # in whole numbers: 0.58 * 100 / 2 is 29
    for i, row in enumerate(counts.tolist()):
        if pairs == "cartesian":
            a, b = i // 5 % 5, i % 5
            assert row[a] == (2 * half if a == b else half) and row[b] == row[a]
        else:
            found = [
                (a, b) for a in range(5) for b in range(a) if row[a] == half and row[b] == half
            ]
            assert found or half == 0
        assert sum(row) == size


def test_majorities_are_never_short_by_rounding():
    labels = balanced(10, 500)
    for p, half in ((0.8, 40), (0.58, 29), (0.9, 45), (0.29, 14), (1.0, 50), (0.0, 0)):
        part = Majority(1, 100, p, "disjoint").split(labels, None, 0, 10)
        counts = np.sort(part.counts(labels, 10)[0])
        assert part.sizes.tolist() == [100]
        if half > 20:
            assert counts[-2:].tolist() == [half, half]


def test_two_clients_with_disjoint_pairs_by_hand():
    labels = balanced(4, 10)
    counts = Majority(2, 10, 0.8, "disjoint").split(labels, None, 0, 4).counts(labels, 4)
    first, second = counts.tolist()
    pair = {c for c in range(4) if first[c] == 4}
    assert len(pair) == 2 and all(second[c] == 4 for c in set(range(4)) - pair)
    assert sum(first) == sum(second) == 10


def test_the_rest_is_uniform_over_the_other_classes():
    labels = balanced(10, 5000)
    counts = Majority(100, 100, 0.2, "cartesian").split(labels, None, 0, 10).counts(labels, 10)
    client = np.arange(100)
    different = client[client // 10 != client % 10]
    rest = counts[different].copy()
    rest[np.arange(90), different // 10] = rest[np.arange(90), different % 10] = 0
    assert np.all(rest.sum(1) == 80)
    # Class c is among the others of 72 clients: 72 * 80 draws of one in eight.
    error = np.sqrt(72 * 80 * 7 / 64)
    assert np.abs(rest.sum(0) - 72 * 10).max() < 4 * error


def test_distinct_pairs_use_every_class_alike():
    labels = balanced(10, 5000)
    counts = Majority(500, 20, 1.0).split(labels, None, 0, 10).counts(labels, 10)
    assert np.all((counts == 10).sum(1) == 2)
    assert np.abs((counts == 10).sum(0) - 100).max() < 4 * np.sqrt(500 * 0.2 * 0.8)


def test_shards_hold_few_classes():
    labels = balanced(10, 600)
    part = Shards(20, 2).split(labels, None, 0, 10)
    counts = part.counts(labels, 10)
    assert np.all(counts % 150 == 0) and np.all(counts.sum(1) == 300)
    assert np.unique(held(part)).size == 6000
    assert len({tuple(row) for row in counts.tolist()}) > 10  # dealt at random


def test_two_clients_with_two_shards_by_hand():
    rows = Shards(2, 2).split([1, 0, 1, 0, 0, 1, 1, 0, 0], None, 3, 2)
    counts = rows.counts([1, 0, 1, 0, 0, 1, 1, 0, 0], 2)
    assert rows.sizes.tolist() == [4, 4] and counts.sum() == 8
    assert counts.sum(0).tolist() in ([4, 4], [5, 3]) and counts.max() <= 4


# --- pachinko and natural ---


def test_pachinko_uses_every_image_of_cifar100_once():
    labels = balanced(100, 500)
    part = Pachinko().split(labels, None, 0, 100, {"coarse_label": labels // 5})
    assert part.index.shape == (500, 100)
    assert np.array_equal(np.sort(part.index.ravel()), np.arange(50_000))
    families = part.counts(labels, 100).reshape(500, 20, 5)
    # Dir(0.1) over 20 coarse labels: few of them; Dir(10) over 5 fine labels: nearly all.
    early = families[:100]
    assert 3 < (early.sum(2) > 0).sum(1).mean() < 9
    large = early[early.sum(2) > 40]
    assert np.mean((large > 0).sum(1)) > 4.8


def test_pachinko_shares_have_the_moments_of_both_dirichlets():
    """Before anything runs out: E[sum of squared shares] at the root and below."""
    labels, size = balanced(12, 20_000), 200
    part = Pachinko(300, size, 0.5, 2.0).split(labels, None, 0, 12, {"coarse_label": labels // 3})
    families = part.counts(labels, 12).reshape(300, 4, 3)
    pairs = families.sum(2) * (families.sum(2) - 1) / (size * (size - 1))
    alike = pairs.sum(1)  # chance that two draws share their coarse label: (a + 1) / (4 a + 1)
    assert alike.mean() == pytest.approx(1.5 / 3, abs=4 * alike.std() / np.sqrt(300))
    large = families[families.sum(2) >= 50]
    within = (large * (large - 1)).sum(1) / (large.sum(1) * (large.sum(1) - 1))
    assert within.mean() == pytest.approx(3 / 7, abs=4 * within.std() / np.sqrt(len(within)))


def test_pachinko_has_the_distribution_of_one_draw_at_a_time():
    """The last client, which gets what the others left, against the procedure as published."""
    labels, runs, clients, size = np.repeat(np.arange(5), 4), 1500, 3, 6
    family = np.array([0, 0, 1, 1, 1])
    rng = np.random.default_rng(0)
    fast, slow = np.zeros((runs, 5)), np.zeros((runs, 5))
    for run in range(runs):
        request = Pachinko(clients, size, 0.5, 1.0, "family")
        part = request.split(labels, None, run, 5, {"family": family[labels]})
        fast[run] = part.counts(labels, 5)[-1]
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
    for statistic in (
        lambda x: x[:, :2].sum(1),
        lambda x: x[:, 0],
        lambda x: x.max(1),
        lambda x: x[:, 2:].max(1),
        lambda x: (x[:, :2].sum(1) - 2.4) ** 2,
    ):
        one, other = statistic(fast), statistic(slow)
        error = np.sqrt((one.var() + other.var()) / runs)
        assert abs(one.mean() - other.mean()) < 4 * error


def test_clients_of_pachinko_before_a_label_runs_out_do_not_depend_on_how_many_follow():
    labels = balanced(20, 1000)
    columns = {"coarse_label": labels // 4}
    three, five = (Pachinko(n, 50).split(labels, None, 7, 20, columns) for n in (3, 5))
    assert np.array_equal(three.index, five.index[:3])


def test_two_writers_by_hand():
    labels, writer = [0, 1, 0, 1, 1], {"writer_id": ["b", "a", "a", "c", "b"]}
    part = ByColumn(least=2).split(labels, None, 0, 2, writer)
    assert part.index.tolist() == [[1, 2], [0, 4]]
    assert ByColumn().split(labels, [3, 4], 0, 2, writer).index.tolist() == [[4], [3]]


def test_a_subset_of_writers_is_drawn_at_random():
    writer = np.repeat(np.arange(40), 5)
    labels = np.zeros(200, int)
    parts = [ByColumn(clients=10).split(labels, None, s, 1, {"writer_id": writer}) for s in (0, 1)]
    chosen = [writer[part.index[:, 0]].tolist() for part in parts]
    assert chosen[0] == sorted(set(chosen[0])) and len(chosen[0]) == 10 and chosen[0] != chosen[1]


# --- side information ---


def test_angle_shares_have_the_spread_of_a_dirichlet():
    labels = balanced(10, 6000)
    part = Rotated(IID(100)).split(labels, None, 0, 10)
    shares = np.array([np.bincount(row, minlength=8) / 600 for row in part.side["angle"]])
    spread = 1 / 8 * 7 / 8 / 9
    assert np.abs(shares.mean(0) - 1 / 8).max() < 4 * np.sqrt(spread / 100)
    assert shares.var() == pytest.approx(spread, rel=0.2)


def test_another_part_has_the_same_client_but_other_draws():
    labels = balanced(10, 6000)
    request = LabelPermuted(Rotated(IID(60)))
    train = request.split(labels, None, 0, 10)
    other = request.side(IID(60).split(labels, None, 0, 10), "test", 0, 10)
    assert np.array_equal(train.side["permutation"], other.side["permutation"])
    assert not np.array_equal(train.side["angle"], other.side["angle"])
    one, two = (
        np.array([np.bincount(row, minlength=8) / 1000 for row in part.side["angle"]])
        for part in (train, other)
    )
    error = np.sqrt((one * (1 - one) + two * (1 - two)) / 1000) + 1e-3
    assert (np.abs(one - two) / error).max() < 4.5


def test_a_clients_angles_do_not_depend_on_the_other_clients():
    request = Rotated(IID(6, 20))
    part = request.split(balanced(5, 100), None, 3, 5)
    fewer = request.side(IID(4, 20).split(balanced(5, 100), None, 3, 5), "train", 3, 5)
    assert np.array_equal(part.side["angle"][:4], fewer.side["angle"])


def test_one_angle_per_client_comes_in_blocks():
    request = Rotated(IID(4, 2), angles=(0, 180), alpha=None)
    assert request.split(np.zeros(8, int), None, 0, 1).side["angle"].tolist() == [
        [0, 0], [0, 0], [1, 1], [1, 1],
    ]  # fmt: skip


def test_permutations_are_assigned_at_random():
    part = LabelPermuted(IID(400), 4).split(balanced(10, 400), None, 0, 10)
    used = np.bincount(part.side["permutation"][:, 0], minlength=4)
    assert np.abs(used - 100).max() < 4 * np.sqrt(400 * 3 / 16)
    assert len(LabelPermuted(IID(), 6).tables(0, 3)) == 6  # all that there are
    assert np.array_equal(
        LabelPermuted(IID(), 2).tables(5, 10), LabelPermuted(IID(), 4).tables(5, 10)[:2]
    )


def test_side_information_of_ragged_rows_ends_with_the_row():
    request = Rotated(LabelPermuted(ByColumn(), 2), angles=(0, 90), alpha=None)
    part = request.split([0, 0, 1, 1], None, 0, 2, {"writer_id": [0, 1, 1, 1]})
    assert set(part.side) == {"angle", "permutation"}
    assert part.side["angle"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert np.all(part.side["permutation"][0, 1:] == 0)


# --- refusals, and schemes of one's own ---

LABELS = balanced(10, 50)
COLUMNS = {"coarse_label": LABELS // 2, "writer_id": np.repeat(np.arange(50), 10)}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Dirichlet(501, size_alpha=1.0), "500 examples, not 501"),
        (Dirichlet(10, 1.0, 51, size_alpha=1.0), "10 clients x 51 examples = 510, but only 500"),
        (QuantitySkew(51), "51 clients x 10 examples at least = 510, but only 500"),
        (
            QuantitySkew(50, 0.1),
            r"in 1,000 tries to share 500 examples among 50 clients with alpha 0\.1, the smallest "
            "client had 0 at most, but should have 10",
        ),
        (
            Majority(10, 100, 1.0),
            r"class \d is a majority \d times x 50 examples = \d+, .* only 50",
        ),
        (
            Majority(2, 250, 0.0, "disjoint"),
            r"client 1 needs 250 examples of classes other than \d and \d, but only \d+ are left "
            "after 1 clients",
        ),
        (Majority(6, 5, 0.8, "disjoint"), "6 clients .* need 12 classes, but there are only 10"),
        (Shards(251, 2), "251 clients x 2 shards of an example = 502, but only 500 are"),
        (Pachinko(10, 51), "10 clients x 51 examples = 510, but only 500"),
        (
            Pachinko(10, 5, coarse="coarse"),
            "no column 'coarse'; allowed: coarse_label, writer_id; did you mean 'coarse_label'",
        ),
        (Pachinko(10, 5, coarse="writer_id"), "class 0 has more than one value .*'writer_id', "),
        (ByColumn("author"), "no column 'author'; allowed: coarse_label, writer_id"),
        (ByColumn(clients=51), "51 clients .* of the 50 values of 'writer_id' only 50 have 1 "),
        (ByColumn(least=11), "of the 50 values of 'writer_id' only 0 have 11 examples"),
        (LabelPermuted(IID(), 10**7), "10,000,000 .* but 10 classes have only 3,628,800"),
    ],
    ids=lambda item: item if isinstance(item, str) else type(item).__name__,
)
def test_the_impossible_is_refused_with_the_numbers(request_, message):
    with pytest.raises(ValueError, match=message):
        request_.split(LABELS, None, 0, 10, COLUMNS)


def test_a_column_that_is_not_there_or_does_not_fit():
    for columns in (None, {}):
        with pytest.raises(ValueError, match=r"no column 'writer_id'; .* has no other columns"):
            ByColumn().split(LABELS, None, 0, 10, columns)
    with pytest.raises(ValueError, match=r"'writer_id' must be \[500\], one per label, not \(3,\)"):
        ByColumn().split(LABELS, None, 0, 10, {"writer_id": [1, 2, 3]})
    with pytest.raises(ValueError, match="2 classes, not 1"):
        Majority(1, 1).split([0, 0], None, 0, 1)
    with pytest.raises(ValueError, match=r"unknown part 'tests'; .*did you mean 'test'"):
        Rotated(IID()).side(IID(1).split([0], None, 0, 1), "tests", 0, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(size_alpha=0.0), "size_alpha .* not 0"),
        (lambda: QuantitySkew(alpha=-1.0), "alpha .* not -1"),
        (lambda: QuantitySkew(least=0), "least .* not 0"),
        (lambda: Majority(p=1.1), r"p must .* not 1\.1"),
        (lambda: Majority(size=0), "size .* not 0"),
        (lambda: Majority(pairs="cartesien"), "unknown pairs 'cartesien'.*'cartesian'"),
        (lambda: Shards(shards=0), "shards .* not 0"),
        (lambda: Pachinko(leaf_alpha=0.0), "leaf_alpha .* not 0"),
        (lambda: ByColumn(clients=0), "clients .* not 0"),
        (lambda: ByColumn(least=0), "least .* not 0"),
        (lambda: Rotated(IID(), angles=()), "angles must be"),
        (lambda: Rotated(IID(), angles=(0, 360)), r"angles .* not \(0\.0, 360\.0\)"),
        (lambda: Rotated(IID(), alpha=0.0), "alpha .* not 0"),
        (lambda: LabelPermuted(IID(), 0), "permutations .* not 0"),
        (lambda: Rotated(LabelPermuted(Rotated(IID()))), "Rotated is already around IID"),
    ],
    ids=range(15),
)
def test_a_request_is_checked_when_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match=r"Rotated\.of must be Request, got 'IID'"):
        Rotated("IID")


def test_a_scheme_of_ones_own(monkeypatch):
    with pytest.raises(NotImplementedError, match="Request does not say how"):
        Request().split([0], None, 0, 1)
    monkeypatch.setattr(values, "_KINDS", dict(values._KINDS))  # others count the kinds

    @value
    class Fixed(Request):
        def deal(self, pool, seed):
            return IID(2).deal(pool, 0)

    assert Rotated(Fixed()).split(LABELS, None, 0, 10).clients == 2
    assert repr(Rotated(Fixed())) == "Rotated(of=Fixed())"
    assert from_dict(to_dict(Rotated(Fixed()))) == Rotated(Fixed())


def test_a_repeated_deal_is_several_deals():
    request = Repeated(Rotated(ByColumn(least=2)), 3)
    writer = {"writer_id": [0, 0, 0, 1, 1]}
    part = request.split([0] * 5, None, 0, 1, writer)
    assert part.index.tolist() == [[0, 1, 2], [3, 4, -1]] * 3 and set(part.side) == {"angle"}
    labels = balanced(4, 25)
    one, two = IID(5).split(labels, None, 0, 4), Repeated(IID(5)).split(labels, None, 0, 4)
    assert np.array_equal(two.index[:5], one.index)
    assert not np.array_equal(two.index[5:], one.index)
    assert np.array_equal(np.sort(two.index[5:].ravel()), np.arange(100))
    with pytest.raises(ValueError, match=r"times .* not 0"):
        Repeated(IID(), 0)


def test_many_clients_are_quick():
    """Not a benchmark: an accidental loop over clients x examples would take minutes."""
    labels = balanced(10, 20_000)
    assert IID(100_000).split(labels, None, 0, 10).clients == 100_000
    assert Shards(50_000).split(labels, None, 0, 10).clients == 50_000
    writer = {"writer_id": np.arange(200_000) % 3500}
    assert ByColumn().split(labels, None, 0, 10, writer).clients == 3500
