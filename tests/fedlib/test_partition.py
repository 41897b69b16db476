"""Partitions: the table, what all schemes refuse, and parts that are held out and never leak."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from cases import GOLDEN, refused
from dealing import REQUESTS, balanced, deal, printed, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import IID, LabelPermuted, NaturalPartition, Rotated, partition
from fedlib.partition import Dirichlet, HoldoutByColumn, LocalHoldout, MatchedHoldout, OptOut
from fedlib.partition.draws import (
    LabelledExamples,
    Partition,
    cut_groups,
    generator_of,
    generators_of,
    holdout,
    matched,
    whole_part,
)
from fedlib.partition.held_out import divide, thinned
from fedlib.values import from_dict, to_dict, value

few = settings(max_examples=40)


def alike(labels, **columns):
    """A split with these labels, or so many examples of one class."""
    labels = np.zeros(labels, int) if isinstance(labels, int) else labels
    return SimpleNamespace(labels=labels, columns=columns)


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


def test_mirrored_draws_of_a_client_do_not_depend_on_the_others():
    labels, shares = balanced(10, 100), np.random.default_rng(1).dirichlet(np.ones(10), 6)
    shares[4] = 0  # who has no examples mirrors none
    asked = shares, np.r_[shares[:2], shares[:2]]
    whole, few = (rows(matched(labels, p, size=90, seed=3)) for p in asked)
    assert few[:2] == whole[:2] != few[2:] and list(map(len, whole)) == [90] * 4 + [0, 90]
    assert rows(matched(labels, shares, size=90, seed=4)) != whole


def test_table_of_ragged_rows():
    part = Partition.from_lists([[3, 1], [], [0, 2, 5]])
    assert part.clients == 3 and part.sizes.tolist() == [2, 0, 3]
    assert part.flat.tolist() == [3, 1, 0, 2, 5] and part.starts.tolist() == [0, 2, 2, 5]
    assert part.owners.tolist() == [0, 0, 2, 2, 2]
    assert part.client(0).tolist() == [3, 1] and part.client(1).tolist() == []
    assert part.counts([0, 0, 1, 1, 0, 1], 2).tolist() == [[1, 1], [0, 0], [1, 2]]
    assert part.shares([0, 0, 1, 1, 0, 1], 2)[1].tolist() == [0, 0]


def test_the_draws_that_stored_results_were_made_with():
    """If one of these changes, every result stored so far was made from another partition."""
    labels, other = (alike(balanced(10, n, seed)) for n, seed in ((500, 0), (100, 1)))
    request, held_out = Dirichlet(20, 0.5, 100), MatchedHoldout(500, 20, 30)
    parts = divide(request, held_out, labels, other, 10, 6).parts.values()
    dealt = deal(Dirichlet(20, 0.5), labels.labels, 3), deal(IID(30, 40), labels.labels, 5)
    assert [printed(part)[:16] for part in (*dealt, *parts)] == GOLDEN["draws"]["divided"]


def user_columns(n):
    return {"writer_id": np.arange(n) // 50, "kin": np.arange(n) // 7, "year": np.arange(n) % 13}


@pytest.mark.parametrize("code", GOLDEN["held_out"])
def test_every_way_to_hold_out_has_its_golden_draws(code):
    held_out, made = eval(code), ((50, 0), (30, 1))
    labels, other = (alike(balanced(10, n, s), **user_columns(10 * n)) for n, s in made)
    dealt = Rotated(LabelPermuted(NaturalPartition(), 3)), LabelPermuted(IID(3, 40), 3)
    found = divide(dealt[isinstance(held_out, MatchedHoldout)], held_out, labels, other, 10, 6)
    told = [[found.origin[name], printed(part)[:8]] for name, part in found.parts.items()]
    assert told == GOLDEN["held_out"][code] and [*found.parts] == ["train", "validation", "test"]


LABELS = balanced(10, 50)
COLUMNS = {"coarse_label": LABELS // 2, "writer_id": np.repeat(np.arange(50), 10)}
CLASSES = 6


def made(per_class, seed, writers):
    labels = balanced(CLASSES, per_class, seed)
    writer = np.arange(len(labels)) * writers // len(labels)
    return alike(labels, writer=writer, family=labels // 2)


TRAIN, TEST = made(40, 0, 8), made(30, 1, 6)
MERGED = np.concatenate([TRAIN.labels, TEST.labels])
BY_SPLIT = {"train": TRAIN.labels, "test": TEST.labels, "merged": MERGED}


def asked(request, labels=LABELS, **options):
    return deal(request, labels, **{**COLUMNS, **options})


def mirror(shares, size):
    return matched(LABELS, np.array(shares), size=size, seed=0)


def cut(request, held_out, test=TEST):
    return divide(request, held_out, TRAIN, test, CLASSES, 0)


@value
class Handing(partition.Partitioner):
    """Deals what a test says."""

    def partition(self, pool, seed):
        return self.found(pool)


def handing(found):
    object.__setattr__(made := Handing(), "found", found)
    return made


@refused("partition")
def test_the_impossible_is_refused_with_the_numbers(code, message):
    with pytest.raises((ValueError, TypeError), match=message):
        eval(code, {**vars(partition), **globals()})


def examples(division, name):
    """Every example of a part, as its number in the training split followed by the test split."""
    shift = len(TRAIN.labels) if division.origin[name] == "test" else 0
    return [i + shift for row in rows(division.parts[name]) for i in row]


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    held_out=st.builds(LocalHoldout, st.floats(0.05, 0.9), st.floats(0, 0.9), st.booleans())
    | st.builds(MatchedHoldout, st.just(60), st.integers(1, 8), st.integers(1, 8),
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
        assert part.flat.max(initial=0) < len(BY_SPLIT[division.origin[name]])
    train, validation, test = (examples(division, name) for name in division.parts)
    assert len(set(train)) == len(train) and division.parts["train"].sizes.min() >= 1
    for one, other in itertools.combinations((train, validation, test), 2):
        assert not set(one) & set(other)
    again = divide(request_, held_out, TRAIN, TEST, CLASSES, seed)
    for name, part in division.parts.items():
        assert printed(part) == printed(again.parts[name])
    if isinstance(held_out, LocalHoldout):
        check_own(held_out, division, request_, seed)
    else:
        check_matched(held_out, division)


def check_own(held_out, division, request_, seed):
    parts = division.parts
    origin = "merged" if held_out.merge else "train"
    assert set(division.origin.values()) == {origin}
    columns = {n: np.r_[c, TEST.columns[n]] for n, c in TRAIN.columns.items()}
    columns = columns if held_out.merge else TRAIN.columns
    whole = request_.split(BY_SPLIT[origin], None, seed, CLASSES, columns)
    clients = zip(*(rows(part) for part in parts.values()), rows(whole), strict=True)
    for train, validation, test, everything in clients:
        assert sorted(train + validation + test) == everything
        kept = len(train) + len(validation)
        if kept > 1:
            assert abs(kept - (1 - held_out.test) * len(everything)) < 1
        if len(train) > 1:
            assert abs(len(train) - (1 - held_out.validation) * kept) < 1


def check_matched(held_out, division):
    assert division.origin == {"train": "train", "validation": held_out.source, "test": "test"}
    shares = division.parts["train"].shares(TRAIN.labels, CLASSES)
    for name, size in (("validation", held_out.validation), ("test", held_out.test)):
        counts = division.parts[name].counts(BY_SPLIT[division.origin[name]], CLASSES)
        assert np.all(np.abs(counts - shares * size) < 1) and np.all(counts[shares == 0] == 0)
        assert all(len(set(row)) == len(row) == size for row in rows(division.parts[name]))
    if held_out.source == "train":
        assert len(set(examples(division, "train"))) <= len(TRAIN.labels) - held_out.pool


def test_copies_of_the_data_are_held_out_with_mirrored_only():
    request = Rotated(partition.RepeatedPartition(IID(6, 30), 2), angles=(0, 180), alpha=None)
    division = cut(request, MatchedHoldout(60, 5, 5))
    train, validation = (examples(division, name) for name in ("train", "validation"))
    assert len(train) == 2 * len(set(train)) == 360 and not set(train) & set(validation)
    for part in division.parts.values():
        assert part.side["angle"].tolist() == [int(owner >= 6) for owner in part.owners]


@pytest.mark.parametrize("code", GOLDEN["sizes"])
def test_sizes_by_hand(code):
    request_, held_out, n = eval(code)
    train = alike(n, writer_id=np.arange(n) // 8)
    parts = divide(request_, held_out, train, train, 1, 0).parts
    assert [part.sizes.tolist() for part in parts.values()] == GOLDEN["sizes"][code]


@pytest.mark.parametrize(("n", "share", "kept"), [(100, 0.07, 7), (5, 0.2, 1), (6, 0.2, 2)])
def test_fewer_training_examples_by_hand(n, share, kept):
    """0.07 * 100 is above 7."""
    part = Partition.from_lists([range(n)])
    assert thinned(part, np.zeros(n, int), share, seed=0).sizes.tolist() == [kept]


@few
@given(st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=1, max_size=6), seeds, st.data())
def test_thinning_and_opting_out_are_loops_over_clients_and_classes(held, seed, data):
    sizes = np.array([len(row) for row in held])
    part = Partition(np.arange(sizes.sum()), sizes)
    labels = np.array([label for row in held for label in row], np.int64)
    share = data.draw(st.floats(0.01, 0.99))
    kept, inside = [], np.ones(len(labels), bool)
    away = generator_of(seed, "opt out").permutation(len(held))[: round(0.5 * len(held))].tolist()
    for client in range(len(held)):
        mine = part.client(client)
        row = mine[generator_of(seed, "own train", client).permutation(len(mine))]
        order = mine[generator_of(seed, "opt out examples", client).permutation(len(mine))]
        stacks = [row[labels[row] == label] for label in range(4)]
        few = [stack[: max(1, math.ceil(share * len(stack) - 1e-9))] for stack in stacks]
        kept.append(sorted(np.concatenate(few).tolist()))
        for label in range(4) if client in away else ():
            of_class = order[labels[order] == label]
            inside[of_class[: whole_part(share * len(of_class))]] = False
    assert rows(thinned(part, labels, share, seed)) == kept
    assert OptOut(0.5, share).stays_in(part, labels, seed).tolist() == inside.tolist()


def cut_by(whole, share, groups, times=None, seed=0):
    which, times = (None if given is None else np.array(given) for given in (groups, times))
    return cut_groups(whole, share, which, times, generators_of(seed, "x", np.arange(9)))


@few
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 5)), max_size=60),
    st.floats(0, 0.9), st.booleans(), seeds,
)  # fmt: skip
def test_groups_are_held_whole_everywhere_or_nowhere(rows_of, share, timed, seed):
    """And as near to what is asked for as groups come, whatever a client has of them."""
    owner, group, time = np.array(rows_of, int).reshape(-1, 3).T
    whole = Partition.from_owners(np.arange(len(owner)), owner, 3)
    kept, held = cut_by(whole, share, group, time if timed else None, seed)
    assert sorted([*kept.flat, *held.flat]) == [*range(len(owner))]
    assert {*group[kept.flat]}.isdisjoint(group[held.flat])
    for mine, out in zip(rows(kept), rows(held), strict=True):
        those, n = {*group[mine + out]}, len(mine + out)
        wanted = n - min(max(1, whole_part((1 - share) * n)), n)
        alone = not [g for g in those if len({*owner[group == g]}) > 1]  # shared with nobody
        assert not out or wanted or not alone
        if alone and wanted and len(those) > 1 and not timed:
            assert mine and out
            largest = max(np.bincount(group[mine + out]))
            assert abs(len(out) - wanted) <= largest


@few
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), min_size=1, max_size=40),
    st.floats(0.05, 0.9),
)
def test_the_latest_are_held_by_a_loop_over_all_moments(rows_of, share):
    """A group is as late as its first example; what begins at one moment stays together."""
    group, time = np.array(rows_of, int).T
    _, held = cut_by(Partition.from_lists([range(len(group))]), share, group, time)
    wanted = len(group) - max(1, whole_part((1 - share) * len(group)))
    first = np.array([time[group == g].min() for g in group])
    ways = [np.flatnonzero(first >= moment) for moment in sorted({*first})[1:]]  # some are kept
    best = min(ways, key=lambda way: (abs(len(way) - wanted), len(way)), default=np.array([], int))
    assert held.flat.tolist() == (best.tolist() if wanted else [])


def test_groups_by_hand():
    """Sizes 3, 1 and 8; 4 of 12 are asked for: the large group is not held to come near."""
    part = Partition.from_lists([range(12)])
    for seed in range(5):
        _, held = cut_by(part, 1 / 3, [0] * 3 + [1] + [2] * 8, seed=seed)
        assert held.flat.tolist() == [0, 1, 2, 3]
    two = Partition.from_lists([range(6), range(6, 12)])  # group 1 is in both
    for seed in range(5):
        kept, held = cut_by(two, 0.5, [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2], seed=seed)
        assert rows(held) in ([[0, 1, 2], [9, 10, 11]], [[3, 4, 5], [6, 7, 8]])
        assert kept.sizes.tolist() == held.sizes.tolist() == [3, 3]


MOMENTS = {
    "numbers as text": (["10", "9", "-1", "9.5"], [3, 1, 0, 2]),
    "dates": (["2021-04-03", "2021-04-03 09:30", "2021-04", "1969-12-31"], [2, 3, 1, 0]),
    "zones": (["2021-04-03 10:00+02:00", "2021-04-03 09:00", "2021-04-03T08:00Z"], [0, 1, 0]),
    "numbers": ([3.5, -1.0, 3.5], [1, 0, 1]),
}


@pytest.mark.parametrize(("given", "expected"), MOMENTS.values(), ids=MOMENTS)
def test_times_are_no_words(given, expected):
    """As words 10 came before 9."""
    n = len(given)
    pool = LabelledExamples(np.zeros(n, int), np.arange(n), 1, {"when": np.array(given)})
    assert pool.times("when").tolist() == expected


USER = NaturalPartition("user")


def own(**columns):
    return divide(USER, HoldoutByColumn(0.4, 0.0, **columns), USERS, MORE, 2, 3)


WHO, YEAR = np.array(["ann", "bob"]).repeat(10), np.tile(np.arange(2000, 2010), 2)
ODD = {"word": np.array(["2021-04-03", "3/4/2021"] * 10), "gap": np.tile([0.0, np.nan], 10)}
USERS = alike(np.tile([0, 1], 10), user=WHO, year=YEAR, ward=np.arange(20) // 5, **ODD)
MORE = alike(np.tile([0, 1], 3), user=np.array(["bob", "ann", "bob", "bob", "bob", "ann"]))


@value
class Parts(partition.Partitioner):
    """Every user becomes so many clients, or, below 1, as many users one client."""

    parts: float = 2.0

    def partition(self, pool, seed):
        who = np.unique(pool.column("user"), return_inverse=True)[1]
        rank = np.array([(who[:i] == u).sum() for i, u in enumerate(who)])
        owner = who * int(self.parts) + rank % int(self.parts) if self.parts >= 1 else 0 * who
        return Partition.from_owners(pool.positions, owner, owner.max() + 1)


@pytest.mark.parametrize("parts", [2.0, 0.5])
@pytest.mark.parametrize("held_out", [
    LocalHoldout(), MatchedHoldout(4, 2, 2), HoldoutByColumn(owner="user"),
    HoldoutByColumn(group="ward"), HoldoutByColumn(time="year"),
], ids=repr)  # fmt: skip
def test_users_may_be_cut_or_joined(parts, held_out):
    """Each test of the given test split is then at one client who has examples of its user."""
    found = divide(Parts(parts=parts), held_out, USERS, MORE, 2, 0)
    assert found.parts["train"].clients == 2 * parts
    for part in found.parts.values():
        assert len({*part.flat}) == len(part.flat) or isinstance(held_out, MatchedHoldout)
    if getattr(held_out, "owner", None):
        tests = found.parts["test"]
        assert sorted(tests.flat) == [*range(6)]
        for client, row in enumerate(rows(tests)):
            assert {*MORE.columns["user"][row]} <= {*WHO[found.parts["train"].client(client)]}
        assert tests.sizes.tolist() == ([1, 1, 2, 2] if parts > 1 else [6])


@pytest.mark.parametrize(("part", "other"), [("test", "validation"), ("validation", "test")])
def test_a_column_says_which_part_an_example_is_of(part, other):
    said = np.array(["train", part, "train", "train", part]).repeat(4)
    some = alike(USERS.labels, **USERS.columns, fold=said)
    found = divide(USER, HoldoutByColumn(0.5, 0.5, part="fold"), some, MORE, 2, 0).parts
    assert rows(found[part]) == [[4, 5, 6, 7], [16, 17, 18, 19]]
    assert found[other].sizes.tolist() == found["train"].sizes.tolist() == [3, 3]
    held = HoldoutByColumn(validation=0.5, part="fold", group="ward", merge=False)
    with pytest.raises(ValueError, match=f"'ward' 0 has examples for train and for {part}"):
        divide(USER, held, some, MORE, 2, 0)


@pytest.mark.parametrize(("source", "golden"), [("train", "b545f4cd"), ("test", "611c55a6")])
def test_matched_examples_are_of_no_group_that_is_trained_on(source, golden):
    of = alike(LABELS, who=np.arange(500) // 5), alike(LABELS[::-1], who=90 + np.arange(500) // 5)
    held = MatchedHoldout(100, 10, 20, source, group="who")
    found = divide(IID(4, 50), held, *of, 10, 0)
    split = {"train": of[0].columns["who"], "test": of[1].columns["who"]}
    groups = {n: {*split[found.origin[n]][part.flat]} for n, part in found.parts.items()}
    for one, other in itertools.combinations(groups.values(), 2):
        assert one and other and not one & other
    assert [part.sizes.tolist() for part in found.parts.values()] == [[50] * 4, [10] * 4, [20] * 4]
    assert printed(found.parts["validation"])[:8] == golden


def test_tests_of_strangers_are_left_out_and_said_to_be():
    """Who is drawn out of the federation is no stranger."""
    more = alike(MORE.labels, user=np.where(MORE.columns["user"] == "ann", "eve", "bob"))
    held = HoldoutByColumn(owner="user")
    with pytest.warns(UserWarning, match="2 examples .* left out: .* 'user', as row 1 has 'eve'"):
        found = divide(USER, held, USERS, more, 2, 0)
    assert rows(found.parts["test"]) == [[], [0, 2, 3, 4]]
    alone = divide(NaturalPartition("user", clients=1), held, USERS, MORE, 2, 0).parts["test"]
    assert {*MORE.columns["user"][alone.flat]} == {*alone.names}


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
@pytest.mark.parametrize("columns", [
    {"group": "writer"}, {"time": "writer"}, {"group": "family", "time": "writer"},
], ids=str)  # fmt: skip
def test_every_request_can_be_held_out_by_column(request_, columns):
    found = cut(request_, HoldoutByColumn(0.3, 0.2, **columns)).parts
    every = np.concatenate([part.flat for part in found.values()])
    assert len({*every}) == len(every) and found["train"].clients == found["test"].clients
    if "group" in columns:
        groups = [{*TRAIN.columns[columns["group"]][part.flat]} for part in found.values()]
        assert sum(map(len, groups)) == len(set.union(*groups))
    else:
        for train, validation, test in zip(*map(rows, found.values()), strict=True):
            first, then = (TRAIN.columns["writer"][some] for some in (train, validation + test))
            assert max(first) < min(then, default=99)
