"""The small modules that all others stand on: randomness, the process, progress."""

import sys

from fedlib import progress
from fedlib.randomness import PURPOSES, generator, torch_seed


def test_every_purpose_and_place_has_draws_of_its_own():
    where = [(round, client) for round in range(3) for client in range(3)]
    places = [(seed, purpose, *at) for seed in (0, 1) for purpose in PURPOSES for at in where]
    draws = [int(generator(*place).integers(2**62)) for place in places]
    seeds = [torch_seed(*place) for place in places]
    assert len(set(draws)) == len(set(seeds)) == len(places)
    assert draws == [int(generator(*place).integers(2**62)) for place in places]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_seeds_that_stored_results_were_made_with():
    assert torch_seed(0, "model", 0) == 2918264622725855778
    assert int(generator(0, "cohort", 3).integers(2**32)) == 1035405716


def test_only_what_somebody_sees_is_drawn(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.delenv("FEDLIB_QUIET", raising=False)
    for seen in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda seen=seen: seen, raising=False)
        assert progress.watched() is seen
        assert progress.bar(3, "rounds").disable is not seen
    monkeypatch.setenv("FEDLIB_QUIET", "1")
    assert progress.quiet() and progress.bar(3, "rounds").disable
