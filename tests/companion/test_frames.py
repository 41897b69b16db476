"""Tidy frames and intervals, on numbers small enough to check by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from rows import logged
from scipy import stats

from companion import frames
from papers.fedmix import FEDAVG, FEDMIX


def frame(*rows):
    return logged(rows)


def gd(method, seed, round, value, item="base.0.weight", expert=-1):
    return (method, seed, round, "divergence", -1, expert, item, value)


def test_divergence_sums_tensors_and_averages_experts():
    rows = frame(
        gd(FEDMIX, 0, 1, 0.1, "experts.base.0.weight", 0),
        gd(FEDMIX, 0, 1, 0.3, "experts.base.0.weight", 1),
        gd(FEDMIX, 0, 1, 0.2, "experts.head.bias", 0),
        gd(FEDMIX, 0, 1, 0.4, "experts.head.bias", 1),
        gd(FEDMIX, 0, 1, 9.0, "phi"),
        gd(FEDMIX, 0, 1, 9.0, "gate.A"),
    )
    assert frames.divergence(rows)["value"].tolist() == pytest.approx([0.5])


def test_smooth_is_a_mean_over_past_rounds_within_a_run():
    rows = frame(*(gd(FEDAVG, s, t, 10 * s + t) for s in (0, 1) for t in (1, 2, 3)))
    smooth = frames.smooth(frames.divergence(rows), 2)
    assert smooth[["seed", "round", "value"]].to_numpy().tolist() == [
        [0, 2, 1.5], [0, 3, 2.5], [1, 2, 11.5], [1, 3, 12.5],
    ]  # fmt: skip


def accuracy(round, test, held, seed=0):
    cells = product((("test", test), ("validation", held)), ((0, 0.1), (1, -0.1)))
    each = [(f"{m}_accuracy", c, -1, "", v + d) for (m, v), (c, d) in cells]
    return [(FEDAVG, seed, round, *row) for row in each]


def test_the_round_is_chosen_on_validation_and_never_on_test():
    """A mean over the end of training leaves out the untrained model, however few rounds it has."""
    rows = frame(*accuracy(0, 0.2, 0.1), *accuracy(16, 0.9, 0.3), *accuracy(20, 0.5, 0.6))
    said = frames.reported(rows).set_index("rule")["value"]
    assert said["best on validation"] == pytest.approx(0.5)
    assert said["last"] == pytest.approx(0.5)
    assert said["last quarter"] == pytest.approx((0.9 + 0.5) / 2)


def test_a_curve_weighs_clients_by_their_examples_if_asked():
    end = [(FEDAVG, 0, 5, "test_accuracy", c, -1, "", a) for c, a in ((0, 0.2), (1, 0.8))]
    sizes = [(FEDAVG, 0, 0, "examples", c, -1, "", n) for c, n in ((0, 1), (1, 3))]
    for weighted, mean in ((True, 0.65), (False, 0.5)):
        course = frames.curve(frame(*end, *sizes), "test_accuracy", weighted=weighted)
        assert course["value"].tolist() == pytest.approx([mean])


def sent(method, seed, *per_round):
    cells = product(enumerate(per_round, start=1), ("bytes_down", "bytes_up"))
    return [(method, seed, t, way, -1, -1, "", value / 2) for (t, value), way in cells]


def scored(method, seed, **by_round):
    cells = product(by_round.items(), ((0, -0.1), (1, 0.1)))
    each = [(int(t[1:]), "test_accuracy", c, -1, "", v + d) for (t, v), (c, d) in cells]
    return [(method, seed, *row) for row in each]


def test_gigabytes_are_cumulated_over_all_rounds_from_nothing():
    rows = frame(*sent(FEDAVG, 0, 2e9, 1e9, 1e9), *sent(FEDAVG, 1, 3e9))
    total = frames.gigabytes(rows)
    assert total[["seed", "round", "gigabytes"]].to_numpy().tolist() == [
        [0, 0, 0], [0, 1, 2], [0, 2, 3], [0, 3, 4], [1, 0, 0], [1, 1, 3],
    ]  # fmt: skip
    # Of two runs: means of megabytes a round each way, 2000 / 3 and 1500; of all that was sent.
    assert frames.traffic(rows).loc[FEDAVG].tolist() == [1083.33, 1083.33, 3500.0]
    places = pd.concat([rows.assign(p=0.2), rows.assign(p=1.0)], ignore_index=True)
    assert frames.traffic(places).loc[FEDAVG].tolist() == [1083.33, 1083.33, 3500.0]


def test_accuracy_at_a_budget_is_interpolated_and_never_extrapolated():
    rows = frame(
        *sent(FEDMIX, 0, 2e9, 2e9), *scored(FEDMIX, 0, r0=0.1, r2=0.5),
        *sent(FEDMIX, 1, 1e9, 1e9), *scored(FEDMIX, 1, r0=0.1, r2=0.9),
    )  # fmt: skip
    course = frames.against_traffic(rows, "test_accuracy")
    assert course["gigabytes"].tolist() == [0, 4, 0, 2]
    found = frames.at_traffic(course, {0: 1.0, 1: 2.0})
    assert found[FEDMIX] == pytest.approx({0: 0.2, 1: 0.9}) and found[FEDAVG] == {}
    assert frames.at_traffic(course, {0: 4.1, 7: 1.0}) == {}


def test_adapted_accuracy_is_compared_on_the_clients_of_the_cohort():
    own = [(FEDAVG, 0, 10, "adapted_test_accuracy", 1, -1, "", 0.9)]
    rows = frame(*scored(FEDAVG, 0, r0=0.1, r10=0.5), *own)
    (row,) = frames.adapted(rows).to_dict("records")
    assert (row["round"], row["value"]) == (10, 0.9)
    assert (row["server"], row["gain"]) == pytest.approx((0.6, 0.3))
    assert frames.adapted(frame(*scored(FEDAVG, 0, r0=0.1))).empty


def test_a_stated_mean_has_students_interval_and_its_runs():
    values = [1.0, 2.0, 4.0]
    mean, low, high = frames.interval(values)
    expected = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected) and mean == pytest.approx(7 / 3)
    assert np.isnan(frames.interval([1.0, 2.0])[1:]).all()
    assert frames.stated(values) == f"2.333 ± {high - mean:.3f} (3)"
    assert frames.stated([0.5]) == "0.500 (1)"
    both = frames.stated(pd.Series([0.4, 0.6]), published=0.633, spread=0.041)
    assert both == "0.500 (2) {0.041} [0.633]"


def test_matrix_of_a_round_that_was_not_logged_is_an_error():
    rows = frame((FEDMIX, 0, 10, "q", -1, 0, "0", 1.0))
    with pytest.raises(ValueError, match="'q' of 'FedMix', seed 0, was not logged at round 5"):
        frames.matrix(rows, "q", FEDMIX, 0, 5)
    assert frames.matrix(rows, "q", FEDMIX, 0, 10).tolist() == [[1.0]]


def test_a_method_that_was_not_run_has_no_seeds():
    rows = frame(*accuracy(0, 0.2, 0.1), *accuracy(10, 0.5, 0.3), *accuracy(10, 0.7, 0.3, seed=1))
    ends = frames.final(rows, "test_accuracy")
    assert ends[FEDAVG] == pytest.approx({0: 0.5, 1: 0.7}) and ends[FEDMIX] == {}
    assert FEDMIX not in ends, "asking leaves no trace"


def test_numbers_by_method_are_rows_again():
    numbers = {FEDAVG: {0: 0.5, 1: 0.7}, FEDMIX: {1: 0.6}}
    rows = frames.rows_of(numbers)
    assert frames.by_method(rows) == numbers and len(rows) == 3
    assert frames.rows_of({}).empty and list(frames.rows_of({})) == list(rows)


def test_seeds_that_some_method_lacks_are_left_out():
    rows = [(FEDAVG, 0), (FEDAVG, 1), (FEDMIX, 1), (FEDMIX, 1), (FEDMIX, 2)]
    table = pd.DataFrame(rows, columns=["method", "seed"]).assign(value=1.0)
    assert frames.same_seeds(table)["method"].tolist() == [FEDAVG, FEDMIX, FEDMIX]
    assert set(frames.same_seeds(table)["seed"]) == {1}
    assert len(frames.same_seeds(table[table["seed"] != 1])) == 0


def test_a_run_is_read_at_the_round_whose_state_it_kept():
    rows = []
    for seed, kept in ((0, 0), (1, 6)):
        rows += [(FEDAVG, seed, t, "test_accuracy", 0, -1, "", 0.1 * t) for t in (0, 2, 4, 6)]
        rows.append((FEDAVG, seed, 6, "kept_round", -1, -1, "", kept))
    ends = frames.ended(frame(*rows), "test_accuracy")
    assert ends["value"].tolist() == pytest.approx([0.0, 0.6])
