"""Empty clients, clients of one example or one class: every algorithm copes, or says why not."""

from __future__ import annotations

import pytest
from playing import BATTERY

from benchmarks.robustness import odd

# Most of the battery differs by options that no client's size touches.
ALGORITHMS = odd.every_algorithm() | {n: a for n, a in BATTERY.items() if "," in n}


@pytest.mark.parametrize("labels", odd.ODD.values(), ids=odd.ODD)
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_two_rounds_are_finite_or_refused_in_clear_words(algorithm, labels):
    said = odd.judged(algorithm, odd.federation(labels))
    assert said[0] != "!", said


def test_a_broken_promise_is_told(monkeypatch):
    algorithm = odd.every_algorithm()["FedAvg"]
    monkeypatch.setattr(odd, "evaluate_global", lambda *_: float("nan"))
    assert odd.judged(algorithm, odd.federation([[0, 1]])) == "!the global accuracy is none"
