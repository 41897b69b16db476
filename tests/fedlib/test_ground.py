"""The small rooms that all others stand on: randomness, memory, progress."""

import sys
from types import SimpleNamespace

import pytest

from fedlib import memory, progress
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


def test_only_what_somebody_sees_is_drawn(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.delenv("FEDLIB_QUIET", raising=False)
    for seen in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda seen=seen: seen, raising=False)
        assert progress.watched() is seen
        assert progress.bar(3, "rounds").disable is not seen
        progress.note("waiting")
        assert ("fedlib: waiting" in capsys.readouterr().err) is seen
    monkeypatch.setenv("FEDLIB_QUIET", "1")
    assert progress.quiet() and progress.bar(3, "rounds").disable


def test_the_peak_of_this_process_is_told_in_mib(monkeypatch, tmp_path):
    assert 10 < memory.peak_mib() < 10**6
    monkeypatch.setattr(memory, "Path", lambda _: tmp_path / "no such file")
    used = SimpleNamespace(ru_maxrss=2**20)
    monkeypatch.setattr(memory.resource, "getrusage", lambda _: used)
    monkeypatch.setattr(memory.platform, "system", lambda: "Linux")
    assert memory.peak_mib() == pytest.approx(2**10)
    monkeypatch.setattr(memory.platform, "system", lambda: "Darwin")
    assert memory.peak_mib() == pytest.approx(1)


def test_memory_is_kept_where_the_c_library_can(monkeypatch):
    ask = memory.keep_freed.__wrapped__
    assert ask() is (memory.platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("musl", ""))
    assert ask() is False
