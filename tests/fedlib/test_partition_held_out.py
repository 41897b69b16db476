"""Division into training, validation and test parts: nothing leaks, and everything points right."""

from types import SimpleNamespace

import numpy as np
import pytest
from dealing import printed, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.partition import (
    IID,
    ByColumn,
    ClassDirichlet,
    Dirichlet,
    LabelPermuted,
    Majority,
    Mirrored,
    Own,
    Pachinko,
    Partition,
    QuantitySkew,
    Repeated,
    Rotated,
    Shards,
    divide,
    holdout,
    mirrored,
)
from fedlib.partition.held_out import thinned
from fedlib.values import from_dict, to_dict

CLASSES = 6
REQUESTS = [
    Dirichlet(5, 0.5, 12),
    Dirichlet(5, 0.5, 12, size_alpha=1.0),
    IID(5, 12),
    QuantitySkew(4, 2.0, 3),
    ClassDirichlet(4, 1.0),
    ClassDirichlet(4, 1.0, shared=0.2, seed=None),
    Majority(5, 12, 0.5),
    Shards(5, 2),
    Pachinko(5, 12, coarse="family"),
    ByColumn("writer"),
]


def made(per_class, seed, writers):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(CLASSES), per_class))
    writer = np.arange(len(labels)) * writers // len(labels)
    return SimpleNamespace(labels=labels, columns={"writer": writer, "family": labels // 2})


TRAIN, TEST = made(40, 0, 8), made(30, 1, 6)
MERGED = np.concatenate([TRAIN.labels, TEST.labels])
LABELS = {"train": TRAIN.labels, "test": TEST.labels, "merged": MERGED}


def examples(division, name):
    """Every example of a part, as its number in the training split followed by the test split."""
    shift = len(TRAIN.labels) if division.origin[name] == "test" else 0
    return [i + shift for row in rows(division.parts[name]) for i in row]


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    held_out=st.builds(
        Own,
        st.floats(0.05, 0.9),
        st.floats(0, 0.9),
        st.booleans(),
    )
    | st.builds(Mirrored, st.just(60), st.integers(1, 8), st.integers(1, 8),
                st.sampled_from(["train", "test"])),
    sides=st.sampled_from(["", "angle", "permutation", "both"]),
)  # fmt: skip
def test_no_example_is_trained_on_and_looked_at(request_, seed, held_out, sides):
    assert from_dict(to_dict(held_out)) == held_out
    if sides in ("angle", "both"):
        request_ = Rotated(request_)
    if sides in ("permutation", "both"):
        request_ = LabelPermuted(request_)
    division = divide(request_, held_out, TRAIN, TEST, CLASSES, seed)
    assert list(division.parts) == list(division.origin) == ["train", "validation", "test"]
    names = {"angle", "permutation"} if sides == "both" else {sides} - {""}
    for name, part in division.parts.items():
        assert set(part.side) == names
        assert part.clients == division.parts["train"].clients
        assert part.index.max(initial=0) < len(LABELS[division.origin[name]])
    train, validation, test = (examples(division, name) for name in division.parts)
    assert len(set(train)) == len(train) and division.parts["train"].sizes.min() >= 1
    assert not set(train) & set(validation)
    assert not set(train) & set(test)
    assert not set(validation) & set(test)
    again = divide(request_, held_out, TRAIN, TEST, CLASSES, seed)
    for name, part in division.parts.items():
        assert printed(part) == printed(again.parts[name])
    if isinstance(held_out, Own):
        check_own(held_out, division, request_, seed)
    else:
        check_mirrored(held_out, division)


def check_own(held_out, division, request_, seed):
    parts = division.parts
    origin = "merged" if held_out.merge else "train"
    assert set(division.origin.values()) == {origin}
    columns = {n: np.r_[c, TEST.columns[n]] for n, c in TRAIN.columns.items()}
    whole = request_.split(
        LABELS[origin], None, seed, CLASSES, columns if held_out.merge else TRAIN.columns
    )
    clients = zip(*(rows(part) for part in parts.values()), rows(whole), strict=True)
    for train, validation, test, everything in clients:
        assert sorted(train + validation + test) == everything
        kept = len(train) + len(validation)
        if kept > 1:
            assert abs(kept - (1 - held_out.test) * len(everything)) < 1
        if len(train) > 1:
            assert abs(len(train) - (1 - held_out.validation) * kept) < 1


def check_mirrored(held_out, division):
    assert division.origin == {"train": "train", "validation": held_out.source, "test": "test"}
    shares = division.parts["train"].shares(TRAIN.labels, CLASSES)
    for name, size in (("validation", held_out.validation), ("test", held_out.test)):
        counts = division.parts[name].counts(LABELS[division.origin[name]], CLASSES)
        assert np.all(np.abs(counts - shares * size) < 1)
    if held_out.source == "train":
        assert len(set(examples(division, "train"))) <= len(TRAIN.labels) - held_out.pool


def test_mirrored_parts_are_those_that_stored_results_were_made_with():
    request = Dirichlet(5, 0.5)
    pool, held = holdout(TRAIN.labels, 60, 7)
    train = request.split(TRAIN.labels, pool, 7, CLASSES)
    shares = train.shares(TRAIN.labels, CLASSES)
    validation = mirrored(TRAIN.labels, shares, size=6, seed=7, pool=held)
    test = mirrored(TEST.labels, shares, size=9, seed=7)
    parts = divide(request, Mirrored(60, 6, 9), TRAIN, TEST, CLASSES, 7).parts
    assert [rows(p) for p in parts.values()] == [rows(p) for p in (train, validation, test)]


def test_all_training_examples_can_be_dealt():
    division = divide(IID(8), Mirrored(60, 6, 6, "test"), TRAIN, TEST, CLASSES, 0)
    assert sorted(examples(division, "train")) == list(range(240))
    assert len(set(examples(division, "validation"))) <= 60


def test_copies_of_the_data_are_held_out_with_mirrored_only():
    request = Rotated(Repeated(IID(6, 30), 2), angles=(0, 180), alpha=None)
    division = divide(request, Mirrored(60, 5, 5), TRAIN, TEST, CLASSES, 0)
    train, validation = (examples(division, name) for name in ("train", "validation"))
    assert len(train) == 2 * len(set(train)) == 360 and not set(train) & set(validation)
    for part in division.parts.values():
        assert part.side["angle"][:, 0].tolist() == [0] * 6 + [1] * 6
    with pytest.raises(ValueError, match="use Mirrored with it, not Own"):
        divide(request, Own(), TRAIN, TEST, CLASSES, 0)


def alike(n, **columns):
    return SimpleNamespace(labels=np.zeros(n, int), columns=columns)


@pytest.mark.parametrize(
    ("request_", "held_out", "n", "sizes"),
    [
        # floor(0.75 n) = 6 and 2 stay, floor(0.9 * 6) = 5 and floor(1.8) = 1 of them for training.
        (ByColumn(), Own(0.25, 0.1), 11, [[5, 1], [1, 1], [2, 1]]),
        # Not short by rounding.
        (IID(1), Own(0.1, 0.0), 10, [[9], [0], [1]]),
        (IID(1), Own(0.9, 0.0), 20, [[2], [0], [18]]),
        (IID(1), Own(0.7, 0.0), 10, [[3], [0], [7]]),
        # A client with one example trains on it.
        (Rotated(IID(3)), Own(0.9, 0.5), 3, [[1] * 3, [0] * 3, [0] * 3]),
    ],
)
def test_sizes_by_hand(request_, held_out, n, sizes):
    train = alike(n, writer_id=np.arange(n) // 8)
    parts = divide(request_, held_out, train, train, 1, 0).parts
    assert [part.sizes.tolist() for part in parts.values()] == sizes


def test_fewer_training_examples_by_hand():
    """Of 10, 1 and 3 examples of three classes a share of 0.2 leaves 2, 1 and 1; the other client
    keeps its only one."""
    labels = np.repeat([0, 1, 2, 0], [10, 1, 3, 1])
    part = Partition.from_lists([range(14), [14]])
    few = thinned(part, labels, 0.2, seed=3)
    assert few.counts(labels, 3).tolist() == [[2, 1, 1], [1, 0, 0]]
    assert set(few.client(0)) <= set(range(14)) and few.client(1).tolist() == [14]
    assert printed(few) == printed(thinned(part, labels, 0.2, seed=3))
    assert printed(few) != printed(thinned(part, labels, 0.2, seed=4))
    alone = Partition.from_lists([range(14), []])  # who else there is changes no draw
    assert thinned(alone, labels, 0.2, seed=3).client(0).tolist() == few.client(0).tolist()
    assert thinned(alone, labels, 0.2, seed=3).sizes.tolist() == [4, 0]


@pytest.mark.parametrize(("n", "share", "kept"), [(100, 0.07, 7), (5, 0.2, 1), (6, 0.2, 2)])
def test_a_share_of_a_class_is_rounded_up_once(n, share, kept):
    """0.07 * 100 is a little above 7 as a float."""
    labels = np.zeros(n, int)
    assert thinned(Partition.from_lists([range(n)]), labels, share, seed=0).sizes.tolist() == [kept]


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_only_training_is_thinned(request_, seed):
    """Test and validation parts are those of the full task; of a client's n training examples of a
    class ceil(share * n) stay."""
    fields = (TRAIN, TEST, CLASSES, seed)
    full = divide(request_, Own(0.25, 0.1, merge=True), *fields)
    few = divide(request_, Own(0.25, 0.1, merge=True, train=0.3), *fields)
    assert few.origin == full.origin
    for name in ("validation", "test"):
        assert printed(few.parts[name]) == printed(full.parts[name])
    mine, theirs = (d.parts["train"].counts(MERGED, CLASSES) for d in (few, full))
    assert mine.tolist() == np.ceil(np.round(theirs * 0.3, 6)).astype(int).tolist()
    for client in range(full.parts["train"].clients):
        kept = few.parts["train"].client(client)
        assert set(kept) <= set(full.parts["train"].client(client)) and len(set(kept)) == len(kept)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda seed: divide(IID(1), Own(0.25), alike(20), alike(20), 1, seed).parts["test"],
        lambda seed: thinned(Partition.from_lists([range(20)]), np.zeros(20, int), 0.25, seed),
    ],
    ids=["tests", "what training keeps"],
)
def test_every_example_of_a_client_is_as_likely(drawn):
    times = np.zeros(20)
    for seed in range(400):
        times[drawn(seed).client(0)] += 1
    assert np.abs(times - 100).max() < 4 * np.sqrt(400 * 3 / 16)


def test_a_column_of_one_split_only_cannot_be_merged():
    bare = SimpleNamespace(labels=TEST.labels, columns={})
    with pytest.raises(ValueError, match="unknown column 'writer'"):
        divide(ByColumn("writer"), Own(merge=True), TRAIN, bare, CLASSES, 0)
    divide(ByColumn("writer"), Own(), TRAIN, bare, CLASSES, 0)


@pytest.mark.parametrize(
    ("request_", "held_out", "test", "message"),
    [
        (IID(2), Mirrored(60, 5, 5, "train"), alike(0), r"no test split .* use Own"),
        (IID(2), Mirrored(60, 5, 5, "test"), alike(0), r"no test split .* use Own"),
        (IID(2), Mirrored(240), TEST, "240 aside and keep one: 241 needed, but only 240"),
        (IID(2, 100), Mirrored(60, 5, 5), TEST, "2 clients x 100 examples: 200 needed, .* 180"),
        (Shards(6, 1), Mirrored(60, 5, 70), TEST, r"client \d with size 70: \d+ needed, but only"),
    ],
)
def test_the_impossible_is_refused_with_the_numbers(request_, held_out, test, message):
    with pytest.raises(ValueError, match=message):
        divide(request_, held_out, TRAIN, test, CLASSES, 0)
