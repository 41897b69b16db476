"""The results folder: many runs in a file, each read alone, and what may be kept in it."""

import importlib
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from small import TASK

from companion import claims, scorecard
from companion import results as kept_results
from companion.diverged import diverged
from companion.diverged import stored as stored_diverged
from companion.plan import Planned
from fedlib import FedAvg, paths
from fedrun import Experiment, Result, StoreError, find_result, list_runs, store
from fedrun.experiment import Log
from fedrun.files import Damaged
from fedrun.results import export, exported, keys_in, path_of, read_run, result_files
from papers.registry import REGISTRY

module = importlib.import_module("fedrun.results")
RUNS = [Experiment(TASK, FedAvg(), rounds=2, cohort=2, seed=seed) for seed in range(4)]
SECOND = replace(RUNS[0], first_stage=RUNS[1], rounds=1)
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
    assert target.name == "some.parquet" and result_files() == [target]
    assert keys_in(target) == sorted(e.key for e in RUNS)
    for e in RUNS:
        same(find_result(e), made(e))
    assert {r.experiment for r in exported()} == {*RUNS}
    with pytest.raises(StoreError, match=r"only the metrics .* find_result\(experiment\)"):
        exported()[0].model()
    assert find_result(SECOND) is None and path_of(SECOND) is None
    first, again = target.read_bytes(), [find_result(e) for e in reversed(RUNS)]
    assert export(again, "some").read_bytes() == first != export(again[1:], "some").read_bytes()
    export([], "some")
    assert not target.exists() and exported() == []


def test_damage_of_a_file_is_found():
    """A list reads no numbers, so it shows damage of provenances only."""
    target = export([made(e) for e in RUNS], "some")
    whole, group = target.read_bytes(), pq.ParquetFile(target).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name, state in (("run", "damaged"), ("exact", "exported")):
        data = bytearray(whole)
        data[columns[name].dictionary_page_offset + 40] ^= 1
        target.write_bytes(data)
        with pytest.raises(ValueError, match="is no exported result of fedlib"):
            read_run(target, RUNS[2].key)
        assert [entry.state for entry in list_runs()] == [state] * len(RUNS)


@pytest.mark.parametrize("name", ["run", "client", "exact", "value"])
def test_damage_of_the_name_of_a_column_is_found(name):
    """Without "exact" all accuracies were missing, without a word: names have no checksum."""
    target = export([made(RUNS[0])], "some")
    target.write_bytes(target.read_bytes().replace(name.encode(), name[:-1].encode() + b"_"))
    with pytest.raises(Damaged, match=f"has no column {name}|is no exported result"):
        read_run(target, RUNS[0].key)


def test_losses_and_the_divergence_are_rounded_and_accuracies_exact():
    """A file of version 0.2, with a row group for each run and all bits, is read too."""
    log, some = Log(), np.random.default_rng(0).random(2000)
    some[:3] = float("nan"), float("inf"), 1e-300
    for i, x in enumerate(some.tolist()):
        for metric in ("test_accuracy", "test_nll", "divergence", "my_own"):
            log.add(i, metric, x)
    result = Result(RUNS[0], log.table(), CLEAN)
    back = read_run(export([result], "some"), RUNS[0].key)
    assert back.metrics.schema == result.metrics.schema
    for metric, bits in (("test_accuracy", 0), ("test_nll", 14), ("divergence", 24), ("my_own", 0)):
        now = back.select(metric)["value"].to_numpy()
        assert np.isnan(now[0]) and now[1] == np.inf
        if bits:
            assert 2.0 ** -(bits + 2) < np.abs(now[3:] / some[3:] - 1).max() <= 2.0**-bits
        else:
            assert now[2:].tolist() == some[2:].tolist()
    target = paths.results() / "old.parquet"
    with pq.ParquetWriter(target, module._table("", result).schema) as old:
        for e in RUNS:
            old.write_table(module._table(e.key, made(e)))
    same(read_run(target, RUNS[3].key), made(RUNS[3]))


def test_divergence_is_kept_at_evaluated_rounds():
    log, experiment = Log(), replace(RUNS[0], rounds=25, evaluate_every=10)
    for i in range(1, 26):
        log.add(i, "divergence", 0.5, item="w")
        log.add(i, "train_loss", 0.5)
    kept = kept_results.thinned(Result(experiment, log.table(), CLEAN))
    assert [*kept.curve("divergence")] == [10, 20, 25] and len(kept.curve("train_loss")) == 25


def test_a_damaged_file_is_named_by_who_looks_for_a_run_and_listed():
    export([made(RUNS[0])], "b")
    (paths.results() / "a.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match=r"a\.parquet is no exported result of fedlib"):
        find_result(RUNS[0])
    listed = {(e.key, e.state) for e in list_runs()}
    assert listed == {("a", "damaged"), (RUNS[0].key, "exported")}
    assert [e.key for e in list_runs(RUNS[0].key[:8])] == [RUNS[0].key], "as `show KEY` asks"


@pytest.mark.parametrize("commit", ["aaa-dirty", "unknown"])
def test_what_uncommitted_code_has_trained_is_not_exported(commit):
    stage = {"commit": "aaa", "stages": {"0123": [commit]}}
    said = {"commit": "aaa", "segments": [stage]}
    with pytest.raises(ValueError, match="are not exported") as caught:
        export([made(RUNS[0]), made(RUNS[1], said)], "some")
    text = str(caught.value)
    assert text.startswith("1 runs are not exported") and RUNS[0].key not in text
    told = RUNS[1].key, "seed=1", f"(commit {commit})", "Commit it", str(paths.runs())
    assert all(part in text for part in told)
    assert ("git is missing or fails" in text) == (commit == "unknown")
    assert result_files() == []


# What `make results` keeps


@pytest.fixture
def plan(monkeypatch):
    """Three runs of a plan, one of which is a second stage, and what has finished."""
    stored = {}
    places = {RUNS[0].key: "a-x", RUNS[1].key: "a-x", SECOND.key: "b-y"}
    monkeypatch.setattr(kept_results, "homes", lambda book: places)
    asked = [Planned("a", "x", "FedAvg", e) for e in (RUNS[0], RUNS[1], SECOND)]
    monkeypatch.setattr(kept_results, "planned", lambda book, scale: asked)
    monkeypatch.setattr(kept_results, "find_result", lambda e: stored.get(e) or find_result(e))
    return stored, places


def export_now():
    return kept_results.export_runs(REGISTRY, "standard")


def there():
    return {path.stem: set(keys_in(path)) for path in result_files()}


def test_every_finished_run_is_kept_and_no_file_is_written_again(plan, capsys):
    stored, places = plan
    stored |= {RUNS[0]: made(RUNS[0]), SECOND: made(SECOND)}
    kept = export_now()
    assert there() == {"a-x": {RUNS[0].key}}, "not without its first stage"
    assert kept.missing == [RUNS[1]] and kept.waiting == [SECOND]
    first = [(f.read_bytes(), f.stat().st_mtime_ns) for f in result_files()]
    stored[RUNS[1]] = made(RUNS[1])
    stored[RUNS[0]] = made(RUNS[0], {"commit": "ccc"}, value=0.9)  # trained again: it stays
    kept = export_now()
    assert there() == {"a-x": {RUNS[0].key}, "a-x.2": {RUNS[1].key}, "b-y": {SECOND.key}}
    assert kept.missing == kept.dirty == kept.waiting == [] and kept.unplanned == 0
    stored.clear()
    same(find_result(RUNS[0]), made(RUNS[0]))
    assert [(f.read_bytes(), f.stat().st_mtime_ns) for f in result_files()][:1] == first
    before = there()
    del places[RUNS[0].key]  # a setting was cut
    assert kept_results.main(REGISTRY) == 0 and there() == before
    said = capsys.readouterr().out
    assert "3 results in 3 files" in said and "1 of them are asked for by no section" in said


def test_files_of_one_name_count_from_the_first_to_the_last():
    for i in range(1, 12):
        name = module.place_of_more("some")
        assert name == (f"some.{i}" if i > 1 else "some")
        export([made(RUNS[0], value=i), made(RUNS[i % 3 + 1])], name)
    assert result_files()[-1].stem == "some.11" and module.group_of(result_files()[-1]) == "some"
    assert find_result(RUNS[0]).metrics["value"][0].as_py() == 11
    assert len(exported()) == len(module.places()) == 4


def test_who_looks_for_runs_opens_each_file_once_until_one_is_replaced(monkeypatch):
    export([made(RUNS[0])], "a")
    export([made(RUNS[1])], "b")
    asked, keys = [], module.keys_in
    monkeypatch.setattr(module, "keys_in", lambda path: asked.append(path.stem) or keys(path))
    assert [path_of(e).stem for e in (*RUNS[:2], *RUNS[:2])] == ["a", "b"] * 2
    assert sorted(asked) == ["a", "b"]
    export([made(SECOND)], "b")
    assert path_of(RUNS[1]) is None and path_of(SECOND).stem == "b"


# A chain is a first stage and what began with it. Bits differ between processors.


def chain(state, *experiments):
    """Results of one sitting: a first stage that ended in a state, and what began with that."""
    found = {RUNS[1]: made(RUNS[1], {**CLEAN, "state": state}, value=len(state))}
    for e in experiments:
        said = {**CLEAN, "state": f"{state} {e.rounds}"}
        said["segments"] = [{"began_with": {RUNS[1].key: state}}]
        found[e] = made(e, said, value=len(state))
    return found


LATER = replace(SECOND, rounds=2)


def states():
    return {r.experiment: r.provenance["state"].split()[0] for r in exported()}


@pytest.fixture
def chained(plan, monkeypatch):
    stored, places = plan
    places |= {LATER.key: "b-y", RUNS[2].key: "a-x"}
    asked = [Planned("a", "x", "m", e) for e in (RUNS[1], SECOND, LATER)]
    monkeypatch.setattr(kept_results, "planned", lambda book, scale: asked)
    return stored


def test_a_first_stage_trained_again_replaces_the_old_one_and_all_that_stands_on_it(chained):
    """The trap: a new stage on a new first one, kept and compared with the old first one."""
    chained |= chain("old", SECOND)
    export_now()
    chained |= chain("new", LATER)
    kept = export_now()
    assert states() == {RUNS[1]: "old", SECOND: "old"} and kept.waiting == [LATER]
    chained |= chain("new", SECOND, LATER)
    before = [(f, f.read_bytes()) for f in result_files()]
    kept = export_now()
    assert states() == {RUNS[1]: "new", SECOND: "new", LATER: "new"} and not kept.waiting
    assert all(f.read_bytes() == data for f, data in before), "history keeps what was"
    chained |= chain("third", SECOND, LATER)
    export_now()
    assert {*states().values()} == {"new"}, "nothing asks for the third"


def test_what_no_section_asks_for_holds_its_first_stage(chained):
    """It cannot be trained again, and would stand on what it did not begin with."""
    gone = replace(SECOND, seed=3)
    export([*chain("old", gone).values()], "a-x")
    chained |= chain("new", SECOND, LATER)
    kept = export_now()
    assert states() == {RUNS[1]: "old", gone: "old"} and {*kept.waiting} == {SECOND, LATER}


def failed(experiment, commit="aaa"):
    """What a run leaves whose loss stopped being finite after a round."""
    said = {"round": 1, "message": "no", "commit": commit}
    store.RunFolder(experiment).write_record(store.FAILURE, said)


def test_a_run_that_diverged_is_named_and_not_waited_for(plan, capsys):
    stored, _ = plan
    stored |= {RUNS[0]: made(RUNS[0])}
    for commit in ("bbb-dirty", "unknown"):
        failed(RUNS[1], commit)
        assert export_now().missing == [RUNS[1], SECOND] and not len(stored_diverged())
    failed(RUNS[1])
    # Nor is waited for what builds on it.
    assert export_now().missing == []
    assert stored_diverged()["key"].tolist() == [RUNS[1].key] and there() == {"a-x": {RUNS[0].key}}
    store.RunFolder(RUNS[1]).forget_failure()  # as on another machine
    assert diverged(RUNS) == {RUNS[1]: 1} and diverged([replace(SECOND, first_stage=RUNS[1])])
    kept_results.main(REGISTRY)
    assert "diverged after 1 rounds: a on x, FedAvg, seed 1" in capsys.readouterr().out
    export([made(RUNS[1])], "a-x.2")  # tried again, and it went well
    assert not diverged(RUNS)
    export_now()
    assert not len(stored_diverged())


def test_a_table_that_is_no_table_is_named():
    """An empty list of diverged runs was an error of pandas', which names no file."""
    figures = paths.figures() / "standard"
    drawn = figures / "07_claims.csv"
    readers = (scorecard.collected, drawn), (lambda: claims.drawn(figures), drawn)
    for read, file in ((stored_diverged, paths.results() / "diverged.csv"), *readers):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        with pytest.raises(Damaged, match=f"{file.name} is no (list|table) of"):
            read()


def test_a_dirty_stage_makes_what_is_built_on_it_dirty(plan, capsys):
    stored, _ = plan
    after = CLEAN | {"segments": [{"stages": {RUNS[1].key: [DIRTY["commit"]]}}]}
    stored |= {RUNS[0]: made(RUNS[0]), RUNS[1]: made(RUNS[1], DIRTY), SECOND: made(SECOND, after)}
    kept = export_now()
    assert {r.experiment for r in kept.dirty} == {RUNS[1], SECOND}
    assert there() == {"a-x": {RUNS[0].key}}
    assert kept_results.main(REGISTRY) == 1
    said = capsys.readouterr()
    assert "1 results in 1 files" in said.out and "2 runs are not exported" in said.err
    assert RUNS[1].key in said.err and SECOND.key in said.err


def test_the_program_for_pandas_reads_what_the_page_says(monkeypatch, capsys):
    """CAMPAIGNS: one accuracy per run; READINGS: which rounds were trained on a GPU."""
    monkeypatch.chdir(paths.ROOT)
    page = (paths.ROOT / "docs" / "CAMPAIGNS.md").read_text()
    exec(page.split("```python")[1].split("```")[0], made := {})
    file = paths.ROOT / "results" / "long-cifar10.parquet"
    for key, mean in made["tests"].groupby("key", observed=True)["number"].mean().items():
        curve = read_run(file, key).metrics.to_pandas().query("metric == 'test_accuracy'")
        assert mean == pytest.approx(curve[curve["round"].eq(2000)]["value"].mean())
    capsys.readouterr()
    for key, run in made["runs"].items():
        parts = run["provenance"]["segments"]
        last = max(part["rounds"][1] for part in parts if "H200" in part["device"])
        whole = run["spec"]["algorithm"]["kind"] != "FedMix"
        assert last == 2000 if whole else 1800 <= last < 2000, key


@pytest.mark.slow
def test_files_of_the_project_have_losses_and_gates_in_value_and_others_in_exact():
    """As docs/CAMPAIGNS.md says; gates and divergences of some files were in ``exact``."""
    for path in sorted((paths.ROOT / "results").glob("*.parquet")):
        table = pq.read_table(path, columns=["metric", "exact"], read_dictionary=["metric"])
        names = table["metric"].filter(table["exact"].is_valid()).unique().to_pylist()
        assert not [n for n in names if n.endswith((*module.LOSSES, *module.FLOATS))], path.name
