"""What counts as found clusters, on posteriors written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.claims import FAILS, HOLDS, UNTESTED
from papers.claims import clusters
from papers.recipes import LABEL_SKEW, PERMUTED, with_k

FOUR = np.array([0, 0, 1, 1, 2, 2, 3, 3])  # eight clients, two of each permutation


def assigned(experts, k, sure=1.0):
    """q(z|s) ``[clients, K]`` with one client per entry, the rest spread evenly."""
    q = np.full((len(experts), k), (1 - sure) / max(k - 1, 1))
    q[np.arange(len(experts)), experts] = sure
    return q


PERFECT = assigned([2, 2, 0, 0, 3, 3, 1, 1], 4)
MERGED = assigned([1, 1, 0, 0, 0, 0, 2, 2], 3)
DOUBLED = assigned([4, 1, 0, 0, 3, 3, 2, 2], 5)


def frame(runs, rounds=(10,), accuracy=0.5):
    """A frame of the metric "clusters": ``runs`` maps (method, seed) to q of all rounds."""
    rows = []
    for (method, seed), q in runs.items():
        for t in rounds:
            for client, row in enumerate(q):
                for expert, v in enumerate(row):
                    rows.append((method, seed, t, "clusters", -1, expert, str(client), v))
            for metric in ("test_accuracy", "validation_accuracy"):
                value = accuracy + 0.01 * q.shape[1]
                rows.append((method, seed, t, metric, 0, -1, "", value))
    names = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
    return pd.DataFrame(rows, columns=names)


def test_measures_by_hand():
    assert clusters.measures(PERFECT, FOUR) == pytest.approx(
        {"right": 1, "pure": 1, "agreement": 1, "sharpness": 1}
    )
    merged = clusters.measures(MERGED, FOUR)
    assert (merged["right"], merged["pure"]) == (6 / 8, 4 / 8)
    doubled = clusters.measures(DOUBLED, FOUR)
    assert (doubled["right"], doubled["pure"]) == (7 / 8, 1)
    unsure = clusters.measures(np.full((8, 4), 0.25), FOUR)
    assert (unsure["right"], unsure["pure"], unsure["sharpness"]) == (2 / 8, 0, 0.25)


def test_who_wins_the_race_between_experts_by_hand():
    """Everybody prefers the first expert at first; then one expert is lost, and two must share."""
    alike = np.tile([0.4, 0.3, 0.2, 0.1], (8, 1))
    lost = assigned([0, 0, 1, 1, 2, 2, 2, 2], 4)
    start = frame({(with_k(4), 0): np.full((8, 4), 0.25)}, rounds=[0])
    runs = pd.concat(
        [start, frame({(with_k(4), 0): alike}, [1]), frame({(with_k(4), 0): lost}, [2])]
    )
    assert clusters.least_used(runs)["value"].tolist() == pytest.approx([1.0, 0.4, 0.0])
    race = clusters.parted(runs, {0: FOUR}).pivot_table("value", "round", "method")
    shared, between = race[clusters.SHARED], race[clusters.BETWEEN]
    assert shared.tolist() == pytest.approx([0, 0.15**2 * 2 + 0.05**2 * 2, 0.25**2 * 2])
    # Away from (1, 1, 2, 0) / 4 are the first two permutations by one sum, the others by the other.
    assert between.tolist() == pytest.approx([0, 0, (2 * (9 + 1 + 4) + 2 * (1 + 1 + 4)) / 16 / 4])
    (row,) = clusters.crowded(runs, {0: FOUR}).to_dict("records")
    ahead = row.pop(clusters.AHEAD)
    assert [*row.values()] == [4, 3, 4, 2] and ahead > 1e6  # nothing differs
    (row,) = clusters.crowded(frame({(with_k(5), 2): DOUBLED}), {2: FOUR}).to_dict("records")
    assert [*row.values()][:4] == [5, 5, 4, 4]
    assert np.isnan(row[clusters.AHEAD])  # the least used has one client of eight, 5/8 of a fifth


@given(st.permutations(range(5)))
def test_the_names_of_experts_mean_nothing(order):
    assert clusters.measures(DOUBLED[:, order], FOUR) == clusters.measures(DOUBLED, FOUR)
    assert np.array_equal(
        clusters.aligned(DOUBLED[:, order], FOUR)[:, 1:4], clusters.one_hot(FOUR)[:, 1:]
    )


def test_aligned_experts_look_like_the_truth():
    shuffled = np.array([3, 1, 0, 2, 1, 0, 2, 3])
    q = assigned((shuffled + 1) % 4, 4, sure=0.7)
    seen = clusters.aligned(q, shuffled)
    assert np.array_equal(seen.argmax(1), np.sort(shuffled))
    few = clusters.aligned(MERGED, FOUR)
    assert few.shape == (8, 3) and sorted(few.sum(0)) == [2, 2, 4]


def test_merging_and_doubling():
    merged, doubled, perfect = (clusters.table_of(q, FOUR) for q in (MERGED, DOUBLED, PERFECT))
    assert clusters.merges_two(merged) and not clusters.merges_two(perfect)
    assert clusters.doubles_one(doubled) and not clusters.doubles_one(perfect)
    torn = clusters.table_of(assigned([0, 1, 1, 1, 2, 2, 2, 2], 3), FOUR)
    assert not clusters.merges_two(torn)
    idle = clusters.table_of(assigned([0, 0, 1, 1, 2, 2, 3, 3], 5), FOUR)
    assert not clusters.doubles_one(idle)


def papers_runs(seeds=3):
    """What the paper shows, for every K and seed."""
    shown = {3: MERGED, 4: PERFECT, 5: DOUBLED}
    return {(with_k(k), s): q for k, q in shown.items() for s in range(seeds)}


def verdicts(runs, **more):
    found = clusters.cluster_claims(frame(runs, **more), dict.fromkeys(range(3), FOUR))
    return [c.verdict for c in found]


def test_the_papers_pictures_hold():
    stored = frame(papers_runs())
    stored.loc[stored["method"] == with_k(3), "value"] *= 0.999  # not all seeds alike
    found = clusters.cluster_claims(stored, dict.fromkeys(range(3), FOUR))
    assert [c.verdict for c in found[:5]] == [HOLDS] * 5
    assert len(verdicts(papers_runs(), rounds=(10, 20))) == len(found) + 2


def test_other_pictures_do_not():
    nothing = {key: np.full(q.shape, 1 / q.shape[1]) for key, q in papers_runs().items()}
    assert verdicts(nothing)[:5] == [FAILS] * 5
    assert set(verdicts(papers_runs(seeds=2))) == {UNTESTED}


def test_late_clusters_do_not_count_within_ten_rounds():
    early = frame({key: np.full(q.shape, 1 / q.shape[1]) for key, q in papers_runs().items()})
    stored = pd.concat([early, frame(papers_runs(), rounds=(11,))])
    found = clusters.cluster_claims(stored, dict.fromkeys(range(3), FOUR))
    assert [c.verdict for c in found[:4]] == [FAILS, FAILS, HOLDS, HOLDS]


def test_missing_methods_are_not_tested():
    only = {key: q for key, q in papers_runs().items() if key[0] == with_k(4)}
    found = verdicts(only)
    assert found[:2] == [HOLDS, HOLDS] and set(found[2:]) == {UNTESTED}


def test_course_and_what_is_seen():
    stored = frame(papers_runs(), rounds=(0, 5, 12))
    course = clusters.course(stored, dict.fromkeys(range(3), FOUR))
    assert len(course) == 3 * 3 * 3
    right = clusters.measured(course, "right").groupby("method")["value"].unique()
    assert right[with_k(4)].tolist() == [1.0]
    seen = clusters.seen(stored, 0, FOUR, most=10)
    assert list(seen) == [f"{with_k(k)}, round 5" for k in (3, 4, 5)]
    one = clusters.seen(stored, 0, FOUR, method=with_k(4))
    assert list(one) == ["K = 4, round 12"]
    assert np.array_equal(one["K = 4, round 12"], clusters.one_hot(FOUR))


def test_truth_is_the_permutation_of_the_data():
    setting = PERMUTED.settings("quick")["permuted_digits"]
    permutations = clusters.truth(setting.task, [0, 2])
    assert sorted(permutations) == [0, 2]
    table = setting.task.divide(2).parts["train"]
    for client, mine in enumerate(permutations[2]):
        assert set(table.side["permutation"][client, : table.sizes[client]]) == {mine}


def test_truth_of_stored_runs_needs_no_data(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path))
    setting = PERMUTED.settings("standard")["permuted_cifar10"]
    assert clusters.truth(setting.task, [1])[1].shape == (20,)
    with pytest.raises(ValueError, match="does not permute the labels"):
        clusters.truth(LABEL_SKEW.settings("quick")["digits"].task, [0])


def test_the_published_number_is_read():
    assert clusters.published_rounds() == 10
