"""Values of hyper-parameters are combined, and chosen on validation examples only."""

from dataclasses import replace
from math import isnan

import pyarrow as pa
import pytest

from fedlib import FedAvg, FedProx, sgd
from fedlib.values import UnknownName
from fedrun import Result, best, compare, grid, tiny
from fedrun.experiment import SCHEMA

VALIDATED = "validation_accuracy"
RATES = [sgd(0.01), sgd(0.1), sgd(1.0)]


def told(experiment, validation, test=0.5):
    """A result with these accuracies."""
    rows = {"validation_accuracy": validation, "test_accuracy": test}
    table = [
        dict(round=2, metric=n, client=0, expert=-1, item="", value=v) for n, v in rows.items()
    ]
    return Result(experiment, pa.Table.from_pylist(table, SCHEMA), {})


def test_a_grid_has_every_combination_of_fields_of_algorithm_and_experiment():
    made = grid(replace(tiny, algorithm=FedProx()), mu=(0.1, 1.0), client=RATES, seed=range(2))
    assert len({e.key for e in made}) == len(made) == 12
    assert {(e.algorithm.mu, e.algorithm.client, e.seed) for e in made} == {
        (mu, rate, seed) for mu in (0.1, 1.0) for rate in RATES for seed in range(2)
    }
    assert grid(tiny) == [tiny]
    with pytest.raises(UnknownName, match=r"unknown hyper-parameter 'clients'.*did you mean"):
        grid(tiny, clients=RATES)


def test_the_best_of_each_method_is_that_of_validation_over_seeds_and_never_of_tests():
    runs = grid(tiny, client=RATES, seed=range(2))
    found = [told(e, v, 1 - v) for e, v in zip(runs, (0.9, 0.1, 0.6, 0.6, 0.2, 0.3), strict=True)]
    other = told(replace(tiny, algorithm=FedProx()), 0.1)
    chosen = best([*found, other])
    assert chosen == {"FedAvg": found[2:4], "FedProx": [other]}
    assert [row.method for row in compare(chosen)] == ["FedAvg", "FedProx"]
    for wrong, words in (
        ([*found[:3]], "FedAvg: all settings must have the same seeds"),
        ([told(tiny, None)], "no validation examples"),
        ([told(replace(tiny, task=replace(tiny.task, validate_on="test")), 0.5)], "one task"),
        ([other, told(replace(tiny, task=replace(tiny.task, portion=0.9)), 0.5)], "one task"),
    ):
        with pytest.raises(ValueError, match=words):
            best(wrong)
    assert best([]) == {} and type(tiny.algorithm) is FedAvg


def test_seeds_without_a_value_have_no_interval_and_are_not_said_to_be_equal(places):
    """As those without test examples; three of them were outside of the limits, 0 to 1."""
    found = compare({"mine": [told(replace(tiny, seed=s), None) for s in range(3)]}, VALIDATED)
    assert isnan(found[0].mean) and isnan(found[0].low)
    assert [*found.to_frame()["95% CI"]] == [""] and VALIDATED in str(found)


def test_settings_whose_stages_have_the_seed_of_the_run_are_the_same():
    def tuned(seed, rate):
        first = replace(tiny, seed=seed)
        return replace(tiny, algorithm=FedAvg(client=rate), seed=seed, first_stage=first)

    runs = [
        told(tuned(s, r), v) for r, v in zip(RATES[:2], (0.1, 0.9), strict=True) for s in (0, 1)
    ]
    assert best(runs) == {"FedAvg": runs[2:]}
