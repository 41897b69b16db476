"""ClassDirichlet deals what PFLlib deals: published sizes, and a plain loop as the oracle."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dealing import deal, printed, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedlib import data as datasets
from fedlib.partition import ClassDirichlet, Own, divide
from fedlib.partition.table import examples

COUNTS = {
    "mnist": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
    "fashion_mnist": [7000] * 10,
    "cifar10": [6000] * 10,
    "cifar100": [600] * 100,
    "ag_news": [31900] * 4,
    "tiny_imagenet": [550] * 200,
    "tiny_imagenet, train only": [500] * 200,
    # With the folder of validation images read as one class, as in 004's runs.
    "tiny_imagenet, mislabelled": [10500] + [500] * 199,
}

# (data set, S in percent): test examples, mean classes per client, sizes (or some of them)
GOLDEN = {
    ("mnist", 0): (17508, 4.75, "2630 499 1630 2541 1917 6189 1256 1269 3600 4006 3116 3772 3613 "
                   "2134 5730 5448 3628 5653 5266 6103"),
    ("fashion_mnist", 0): (17507, 5.30, "82 320 875 2603 1455 5473 4385 4461 5560 3556 6170 6803 "
                           "8551 626 1328 195 2937 4832 5090 4698"),
    ("cifar10", 0): (15005, 5.10, "1621 1814 1211 2080 5128 4264 1440 2622 2974 3236 1164 1964 "
                     "5994 1527 3100 4325 4252 3175 5449 2660"),
    ("cifar100", 0): (15008, 46.05, "3020 3053 2753 3029 2640 2877 3120 3047 2807 3211 2761 3359"),
    ("ag_news", 0): (31906, 2.25, "410 1679 4416 772 158 670 132 4090 375 11583 127 9025 7932 "
                     "15574 6956 11243 26692 7558 6293 11915"),
    ("mnist", 20): (17508, 10, "2780 1090 1998 2727 2227 5621 1695 1704 7262 3617 3075 3706 3596"),
    ("fashion_mnist", 20): (17508, 10, "763 958 1400 2782 1863 5079 4207 4269 5150 3545 5636"),
    ("cifar10", 20): (15008, 10, "1896 2051 1568 2267 4703 4010 1751 2696 2980 3189 1530 2173"),
    ("cifar100", 20): (15007, 100, "3299 3064 2757 3159 2651 2784 3161 3354 2811 3157 2635 3132"),
    ("ag_news", 20): (31906, 4, "6554 1294 13346 2113 1302 4234 17284 12332 1452 7763 7927 1474"),
    ("tiny_imagenet", 0): (27508, 92.65, ""),
    ("tiny_imagenet", 20): (27509, 200, ""),
    ("tiny_imagenet, train only", 0): (25007, 88.8, ""),
    ("tiny_imagenet, train only", 20): (25007, 200, ""),
    ("tiny_imagenet, mislabelled", 20): (27508, 200, ""),
}  # fmt: skip


def check_golden(labels, name, percent):
    tested, spread, sizes = GOLDEN[name, percent]
    classes, request = len(COUNTS[name]), ClassDirichlet(shared=percent / 100)
    part = deal(request, labels, classes=classes)
    expected = [int(n) for n in sizes.split()]
    assert part.sizes.tolist()[: len(expected)] == expected
    assert (part.counts(labels, classes) > 0).sum(1).mean() == pytest.approx(spread)
    kept, held = request.cut(examples(labels, None, classes), 0, 0.25)
    assert held.sizes.sum() == tested
    assert kept.sizes.tolist() == [int(0.75 * n) for n in part.sizes]
    return part


@pytest.mark.parametrize(("name", "percent"), GOLDEN)
def test_published_sizes(name, percent):
    labels = np.repeat(np.arange(len(COUNTS[name])), COUNTS[name])
    part = check_golden(labels, name, percent)
    assert len(np.unique(part.index[part.index >= 0])) == len(labels) == part.sizes.sum()
    if (name, percent) == ("cifar10", 0):
        first = part.counts(labels, 10)[0]
        assert first.tolist() == [0, 9, 0, 668, 476, 287, 5, 167, 0, 9]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "ag_news"])
def test_published_sizes_on_the_real_data(name):
    root = os.environ.get("FEDLIB_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"$FEDLIB_DATA holds no {name}")
    data = datasets.load(name)
    merged = np.concatenate([data.train.labels, data.test.labels])
    assert np.bincount(merged).tolist() == COUNTS[name]
    check_golden(merged, name, 0)
    check_golden(merged, name, 20)
    split = divide(ClassDirichlet(), Own(merge=True), data.train, data.test, data.classes, seed=3)
    assert set(split.origin.values()) == {"merged"}
    assert split.parts["test"].sizes.sum() == GOLDEN[name, 0][0]


def loop(labels, clients, alpha, shared, least, seed):
    """The recipe of PFLlib in the plainest words, one example at a time; (rows, train, test)."""
    state = np.random.RandomState(seed)
    rows = [[]]
    while min(len(row) for row in rows) < least or len(rows) < clients:
        rows = [[] for _ in range(clients)]
        for label in range(max(labels) + 1):
            mine = np.array([i for i, c in enumerate(labels) if c == label], int)
            state.shuffle(mine)
            common = mine[: int(shared * len(mine))]
            for i, example in enumerate(common):
                each = len(common) // clients
                rows[min(i // each, clients - 1) if each else clients - 1].append(example)
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
    st.integers(1, 4),
    st.sampled_from([0.5, 1.0, 10.0]),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(0, 2**32 - 1),
)
def test_every_example_goes_where_a_plain_loop_puts_it(labels, clients, alpha, shared, seed):
    whole, train, test = loop(labels, clients, alpha, shared, 2, seed)
    request = ClassDirichlet(clients, alpha, shared, least=2, seed=None)
    assert rows(deal(request, labels, seed)) == [sorted(row) for row in whole]
    here = SimpleNamespace(labels=np.array(labels[:30]), columns={})
    there = SimpleNamespace(labels=np.array(labels[30:]), columns={})
    parts = divide(request, Own(merge=True), here, there, 4, seed).parts
    for i in range(clients):
        mine = [*parts["train"].client(i), *parts["validation"].client(i)]
        assert sorted(mine) == sorted(train[i])
        assert parts["test"].client(i).tolist() == sorted(test[i])


def test_the_seed_is_the_requests_own_unless_it_has_none():
    labels = np.repeat(np.arange(10), 100)
    one = [printed(deal(ClassDirichlet(5), labels, seed)) for seed in (0, 1)]
    own = [printed(deal(ClassDirichlet(5, seed=None), labels, seed)) for seed in (0, 1)]
    assert one[0] == one[1] == own[1] != own[0]


def test_only_the_pool_is_dealt():
    labels, pool = np.repeat(np.arange(4), 100), np.arange(0, 400, 3)
    part = deal(ClassDirichlet(4), labels, 0, pool[::-1])
    assert sorted(part.index[part.index >= 0]) == pool.tolist()


@pytest.mark.parametrize("alpha", [1e-300, 1e-4])
def test_a_vanishing_alpha_gives_each_class_to_one_hungry_client(alpha):
    labels = np.repeat([0, 2, 4], 100)  # nothing of classes 1, 3 and 5
    counts = deal(ClassDirichlet(3, alpha, least=90), labels, classes=6).counts(labels, 6)
    assert np.sort(counts[:, ::2], 0).tolist() == [[0] * 3, [0] * 3, [100] * 3]
    assert counts.sum(1).tolist() == [100] * 3


@pytest.mark.parametrize("alpha", [1e9, 1e308])
def test_a_huge_alpha_deals_every_class_evenly(alpha):
    labels = np.repeat(np.arange(4), 100)
    assert np.abs(deal(ClassDirichlet(4, alpha), labels).counts(labels, 4) - 25).max() <= 1


def test_it_gives_up_with_the_numbers():
    with pytest.raises(
        ValueError,
        match=r"in 1,000 tries to deal 100 examples of 2 classes to 10 clients with alpha 0\.01, "
        r"the smallest client had 0 at most, but should have 5",
    ):
        deal(ClassDirichlet(10, 0.01), np.repeat(np.arange(2), 50))
