"""The results folder: many runs in a file, each read alone, and what may be kept in it."""

import importlib
import os
import threading
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from companion import keep
from companion.diverged import diverged
from companion.diverged import kept as kept_diverged
from companion.plan import Planned
from fedlib import paths
from fedlib.algorithms import FedAvg
from fedlib.models import MLP
from fedlib.partition import Dirichlet, Mirrored
from fedlib.runs import Experiment, Result, StoreError, export, exported, find, inventory, store
from fedlib.runs.exported import files, held, path_of, read_run
from fedlib.runs.spec import Log
from fedlib.tasks import Task
from papers.book import BOOK

module = importlib.import_module("fedlib.runs.exported")
TASK = Task("digits", Dirichlet(clients=6, alpha=1.0, size=20), MLP(hidden=(8,)),
            Mirrored(pool=100, validation=10, test=10))  # fmt: skip
RUNS = [Experiment(TASK, FedAvg(), rounds=2, cohort=2, seed=seed) for seed in range(4)]
SECOND = replace(RUNS[0], after=RUNS[1], rounds=1)
CLEAN, DIRTY = {"commit": "aaa"}, {"commit": "bbb-dirty"}


def made(experiment, said=CLEAN, value=0.1):
    """A result with numbers that no two runs share, some of them odd."""
    values = [value + experiment.seed, float("nan"), -0.0, 1e-310, 2 / 3, 1.0]
    log = Log()
    for i, v in enumerate(values):
        log.add(i, "m" * (i % 2), v, client=i, item="" if i else "w")
    return Result(experiment, log.table(), said)


def same(one, other):
    assert one.metrics.equals(other.metrics)
    assert one.metrics["value"].to_numpy().tobytes() == other.metrics["value"].to_numpy().tobytes()
    assert (one.experiment, one.provenance) == (other.experiment, other.provenance)


def test_every_run_of_a_file_comes_back_to_the_last_bit():
    target = export([made(e) for e in RUNS], "some")
    assert target.name == "some.parquet" and files() == [target]
    assert held(target) == sorted(e.key for e in RUNS)
    for e in RUNS:
        same(find(e), made(e))
    assert {r.experiment for r in exported()} == {*RUNS}
    assert find(SECOND) is None and path_of(SECOND) is None
    first, again = target.read_bytes(), [find(e) for e in reversed(RUNS)]
    assert export(again, "some").read_bytes() == first != export(again[1:], "some").read_bytes()


def test_a_run_is_read_without_the_others():
    """Only its own row group is decoded: damage of another's provenance or values is not seen."""
    target = export([made(e) for e in RUNS], "some")
    order = held(target)
    whole = target.read_bytes()
    group = pq.ParquetFile(target).metadata.row_group(2)
    said, column = group.column(1), group.column(group.num_columns - 1)
    flips = range(said.dictionary_page_offset + 40, said.data_page_offset, 7)
    for place in (*flips, column.data_page_offset + column.total_compressed_size - 2):
        data = bytearray(whole)
        data[place] ^= 1
        target.write_bytes(data)
        with pytest.raises(ValueError, match="is no exported result of fedlib"):
            read_run(target, order[2])
    for key in (*order[:2], order[3]):
        assert read_run(target, key).experiment.key == key
    states = {entry.key: entry.state for entry in inventory()}
    assert [states[key] for key in order] == ["exported", "exported", "damaged", "exported"]


def test_who_reads_while_a_file_is_replaced_gets_one_or_the_other():
    """Files of other lengths and orders take turns; a reader never mixes them."""
    versions = [[made(e, value=v) for e in some] for v, some in ((0.1, RUNS), (0.2, RUNS[2:]))]
    export(versions[0], "some")
    stop, wrong, looks = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                value = find(RUNS[3]).metrics["value"][0].as_py()
                looks.append(value)
                if value not in (0.1 + 3, 0.2 + 3):
                    wrong.append(value)
            except Exception as error:
                wrong.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(30):
        export(versions[(i + 1) % 2], "some")
    stop.set()
    thread.join()
    assert not wrong and looks


def test_a_damaged_file_is_named_by_who_looks_for_a_run_and_listed():
    export([made(RUNS[0])], "b")
    (paths.results() / "a.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match=r"a\.parquet is no exported result of fedlib"):
        find(RUNS[0])
    assert {(e.key, e.state) for e in inventory()} == {
        ("a", "damaged"), (RUNS[0].key, "exported"),
    }  # fmt: skip


def test_what_cannot_be_exported_changes_nothing(monkeypatch):
    target = export([made(RUNS[0])], "some")
    before = target.read_bytes()

    def full(*args):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(module.atomic.os, "replace", full)
        with pytest.raises(StoreError, match="FEDLIB_RESULTS"):
            export([made(RUNS[1])], "some")
    assert target.read_bytes() == before and files() == [target]
    export([], "some")
    assert not target.exists() and exported() == []


def test_what_uncommitted_code_has_trained_is_not_exported():
    stage = {"commit": "aaa", "stages": {"0123": ["aaa-dirty"]}}
    said = {"commit": "aaa", "segments": [stage]}
    with pytest.raises(ValueError, match="are not exported") as caught:
        export([made(RUNS[0]), made(RUNS[1], said)], "some")
    text = str(caught.value)
    assert text.startswith("1 runs are not exported")
    assert RUNS[1].key in text and RUNS[0].key not in text
    assert "seed=1" in text and "Commit it" in text and str(paths.runs()) in text
    assert files() == []


# What `make results` keeps


@pytest.fixture
def plan(monkeypatch):
    """Three runs of one part of a plan, two of a seed of their own each, and what has finished."""
    stored = {}
    places = {RUNS[0].key: "a-x", RUNS[1].key: "a-x", SECOND.key: "b-y"}
    monkeypatch.setattr(keep, "homes", lambda book: places)
    asked = [Planned("a", "x", "FedAvg", e) for e in (RUNS[0], RUNS[1], SECOND)]
    monkeypatch.setattr(keep, "planned", lambda book, scale: asked)
    monkeypatch.setattr(keep, "by_seed", lambda book, scale: [[RUNS[0]], [RUNS[1], SECOND]])
    monkeypatch.setattr(keep, "find", stored.get)
    return stored, places


def there():
    return {path.stem: set(held(path)) for path in files()}


def test_whole_seeds_are_kept_and_what_is_missing_is_named(plan):
    stored, _ = plan
    stored |= {e: made(e) for e in (RUNS[0], RUNS[1])}
    kept = keep.keep(BOOK, "standard")
    assert there() == {"a-x": {RUNS[0].key}} and kept.missing == [SECOND]
    stored[SECOND] = made(SECOND)
    stored[RUNS[0]] = made(RUNS[0], {"commit": "ccc"}, value=0.9)
    kept = keep.keep(BOOK, "standard")
    assert there() == {"a-x": {RUNS[0].key, RUNS[1].key}, "b-y": {SECOND.key}}
    assert kept.missing == kept.dirty == kept.dropped == []
    same(read_run(kept.files[0], RUNS[0].key), made(RUNS[0]))  # what was kept stays
    before = [(f.read_bytes(), f.stat().st_mtime_ns) for f in kept.files]
    again = keep.keep(BOOK, "quick").files
    assert [(f.read_bytes(), f.stat().st_mtime_ns) for f in again] == before


def failed(experiment, commit="aaa"):
    """What a run leaves whose loss stopped being finite after a round."""
    store.tell(experiment, store.FAILURE, {"round": 1, "message": "no", "commit": commit})


def test_a_run_that_diverged_keeps_no_seed_waiting_and_is_named(plan, capsys):
    stored, places = plan
    stored |= {RUNS[0]: made(RUNS[0])}
    failed(RUNS[1], "bbb-dirty")
    assert keep.keep(BOOK, "standard").missing == [RUNS[1], SECOND] and not len(kept_diverged())
    failed(RUNS[1])
    assert keep.keep(BOOK, "standard").missing == []  # nor does what builds on it
    assert kept_diverged()["key"].tolist() == [RUNS[1].key] and there() == {"a-x": {RUNS[0].key}}
    store.forget_failure(RUNS[1])  # as on another machine
    assert diverged(RUNS) == {RUNS[1]: 1} and diverged([replace(SECOND, after=RUNS[1])])
    keep.main(BOOK)
    assert "diverged after 1 rounds: a on x, FedAvg, seed 1" in capsys.readouterr().out
    export([made(RUNS[1])], "a-x")  # tried again, and it went well
    assert not diverged(RUNS)
    del places[RUNS[1].key]
    keep.keep(BOOK, "standard")
    assert not len(kept_diverged())


def test_what_left_the_plan_is_dropped_and_what_moved_is_moved(plan):
    _, places = plan
    export([made(e) for e in RUNS], "a-x")
    export([made(RUNS[2])], "old-z")
    places[RUNS[1].key] = "b-y"
    kept = keep.keep(BOOK, "standard")
    assert {*kept.dropped} == {RUNS[2], RUNS[3]}
    assert there() == {"a-x": {RUNS[0].key}, "b-y": {RUNS[1].key}}
    same(read_run(path_of(RUNS[1]), RUNS[1].key), made(RUNS[1]))


def test_a_run_that_moves_is_never_nowhere(plan, monkeypatch):
    _, places = plan
    export([made(RUNS[0]), made(RUNS[1])], "a-x")
    export([made(SECOND)], "b-y")
    places |= {RUNS[0].key: "b-y", SECOND.key: "a-x"}
    seen = []

    def put(results, name):
        export(results, name)
        seen.append(set().union(*there().values()))

    monkeypatch.setattr(keep, "export", put)
    keep.keep(BOOK, "standard")
    assert there() == {"a-x": {RUNS[1].key, SECOND.key}, "b-y": {RUNS[0].key}}
    assert all(keys == {*places} for keys in seen)


def test_a_dirty_stage_makes_what_is_built_on_it_dirty(plan, capsys):
    stored, _ = plan
    after = CLEAN | {"segments": [{"stages": {RUNS[1].key: [DIRTY["commit"]]}}]}
    stored |= {RUNS[0]: made(RUNS[0]), RUNS[1]: made(RUNS[1], DIRTY), SECOND: made(SECOND, after)}
    kept = keep.keep(BOOK, "standard")
    assert {r.experiment for r in kept.dirty} == {RUNS[1], SECOND}
    assert there() == {"a-x": {RUNS[0].key}}
    assert keep.main(BOOK) == 1
    said = capsys.readouterr()
    assert "1 results in 1 files" in said.out and "2 runs are not exported" in said.err
    assert RUNS[1].key in said.err and SECOND.key in said.err
