"""A run is what it was made of: spec, code and data of one's own, the stages that it began with."""

import importlib
import linecache
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from cases import table_of
from small import AVG, MIX, TASK, TUNED, Rounds, go, play

from fedlib import IID, MLP, FromFunction, Local, LocalHoldout, Task, paths, values
from fedlib import data as datasets
from fedrun import RunDiverged, StoreError, find_result, provenance, run, store
from fedrun.cli import main
from fedrun.files import DamagedWarning
from fedrun.results import export
from fedrun.source import digest

OF_USERS = table_of("of_users")
BODY, HELPERS = OF_USERS["body"], OF_USERS["helpers"]


@pytest.fixture
def rounds(monkeypatch):
    return Rounds(monkeypatch)


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Write a user's module, and what it imports, and import both anew, as after a restart."""
    monkeypatch.setattr(values, "_KINDS", dict(values._KINDS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def imported(body=BODY, helpers=HELPERS):
        for name, text in (("helpers_of_users", helpers), ("module_of_users", body)):
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module("module_of_users")

    return imported


def of(module, **fields):
    return replace(AVG, algorithm=module.Mine(batch_size=5, **fields))


def through(module):
    task = replace(TASK, model=FromFunction("module_of_users:tower", (("width", 7),)))
    return replace(AVG, task=task)


@pytest.mark.parametrize(("old", "new", "who"), OF_USERS["changes"])
def test_code_of_ones_own_is_part_of_what_a_run_is(imported, old, new, who):
    """What it says counts, how it is written does not, nor what is not used."""
    first = imported()
    before = {"loss": of(first).key, "net": through(first).key}
    stage = replace(TUNED, first_stage=of(first)).key
    assert old in BODY + HELPERS
    again = imported(BODY.replace(old, new), HELPERS.replace(old, new))
    after = {"loss": of(again).key, "net": through(again).key}
    assert {name for name in before if before[name] != after[name]} == ({who} - {""})
    assert AVG.made_of == [] and len({*before.values(), AVG.key}) == 3
    built_on_it = replace(TUNED, first_stage=of(again)).key
    assert (stage != built_on_it) == (who == "loss")


def test_a_file_that_was_edited_after_its_import_is_not_what_runs(imported, tmp_path):
    """The old code runs on: what it trains is not the new code's."""
    new = BODY.replace("RATE * losses", "2 * RATE * losses")
    wanted = of(imported(new)).key
    old = imported()
    (tmp_path / "module_of_users.py").write_text(new)
    assert of(old).key != wanted == of(imported(new)).key


def test_mended_code_is_tried_again(imported):
    broken = BODY.replace("RATE = 1.0", "RATE = float('nan')")
    with pytest.raises(RunDiverged):
        play(of(imported(broken)))
    assert play(of(imported())).select("train_loss")["value"].null_count == 0
    with pytest.raises(RunDiverged):
        play(of(imported(broken)))


def test_code_of_a_notebook_is_read_from_its_cell(imported):
    """By what IPython leaves of a cell; the bytecode where there is nothing."""

    def cell(number, text, readable):
        name = f"<cell {number}>"
        if readable:
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        space = {"__name__": "__main__", "by": 2}
        exec(compile(text, name, "exec", dont_inherit=True), space)
        return digest([space["f"]])

    whole = "class f:\n    def f(self, x):\n        return"
    for kind, readable in [(k, r) for k in ("def f(x):\n    return", whole) for r in (True, False)]:
        plain, words, other = (f"{kind} {s}" for s in ("by * x", "by*x", "x"))
        seen = [cell(i, text, readable) for i, text in enumerate((plain, "\n" + words, other))]
        assert seen[0] == seen[1] != seen[2]


def test_what_a_closure_holds_is_part_of_it():
    def scaled(by):
        return lambda x: by * x

    assert digest([scaled(2)]) == digest([scaled(2)]) != digest([scaled(3)])


def test_a_worker_that_would_run_other_code_is_refused(imported, monkeypatch):
    """A spawned process imports files as they are by then."""
    sent = pickle.dumps(of(imported()).pinned())
    imported(BODY.replace("RATE = 1.0", "RATE = 2.0"))
    arrived = pickle.loads(sent)
    assert arrived.changed and arrived.key != of(sys.modules["module_of_users"]).key
    with pytest.raises(StoreError, match="in this process differ from those it was submitted with"):
        play(arrived)
    imported()
    assert play(pickle.loads(sent)).provenance["data"]


def test_a_result_has_its_model_whatever_becomes_of_code_and_data(imported, places, rounds):
    """A global that a loss counts in, or other arrays under the name, gave the run another key."""
    module = imported()
    result, found = play(of(module)), find_result(of(module))
    module.RATE = 2.0
    assert of(module).key != result.pinned.key and result.experiment == of(module)
    assert all(type(r.model()).__name__ == "Classifier" for r in (result, found))
    stopped = run(replace(of(module), rounds=9), progress=False, callbacks=[lambda m: m.round == 1])
    module.RATE = 3.0
    assert stopped.model() is not None
    on_own = play(own(False))
    own(True)
    with pytest.raises(StoreError, match=r"was trained on users_own .*, and the data set here is"):
        on_own.model()


def test_a_relative_store_stays_where_it_was_read_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLIB_RUNS", "store")
    result = play(AVG)
    monkeypatch.chdir("/")
    assert result.model() is not None and paths.runs() == tmp_path / "store"
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "other"))
    with pytest.raises(StoreError, match=rf"nothing is stored under {AVG.key} in .*other: code"):
        result.model()


# Data


def own(labels):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    datasets.add_data(
        "users_own", (x, y[::-1].copy() if labels else y, {"who": np.arange(60) // 20})
    )
    task = Task("users_own", IID(3, 15), MLP(hidden=(4,)), LocalHoldout(test=0.2))
    return replace(AVG, task=task)


def test_replaced_data_of_ones_own_are_another_run_and_both_are_stored(places, rounds):
    one = own(False)
    before, key = play(one), one.key
    assert own(True) == one and one.key != key
    after = play(one)
    assert rounds.played == 2 * AVG.rounds
    assert after.provenance["data"] != before.provenance["data"]
    own(False)
    assert play(one).provenance == before.provenance and rounds.played == 2 * AVG.rounds
    datasets.add_data("users_own", ([[0.0], [1.0]] * 30, [0, 1] * 30, {"who": np.arange(60) // 30}))
    whose = one.key
    datasets.add_data("users_own", ([[0.0], [1.0]] * 30, [0, 1] * 30, {"who": np.arange(60) % 2}))
    assert whose != one.key, "whose examples are which counts as well"


@pytest.fixture
def decoded(monkeypatch):
    """Have the known data set of these tests hold other examples."""
    build, here = Task.build, TASK.build(0).source.split()[-1]

    def decoded(fingerprint):
        def other(task, *how):
            return replace(build(task, *how), source=f"a mirror, {fingerprint[:12]}")

        monkeypatch.setattr(Task, "build", other)
        monkeypatch.setattr(datasets, "fingerprint", lambda name: fingerprint)

    return decoded, here


def test_a_known_set_with_other_examples_is_not_served(rounds, decoded):
    (put, here), first = decoded, play(AVG)
    export([first], "some")
    put(f"{here}00")
    assert play(AVG).provenance == first.provenance, "the same, wherever they come from"
    put("f" * 64)
    with pytest.warns(
        DamagedWarning, match=f"was trained on digits {here}, and .* is ffffffffff"
    ) as said:
        assert find_result(AVG) is None and not store.RunFolder(AVG).complete
        assert play(AVG).provenance["data"] == "a mirror, ffffffffffff"
    assert all(str(one.message).count("\n") == 0 for one in said)
    assert rounds.played == 2 * AVG.rounds and len([*(paths.runs() / "damaged").iterdir()]) == 1
    put(here)
    with pytest.warns(DamagedWarning, match="was trained on digits ffff"):
        assert find_result(AVG).provenance == first.provenance, "what is exported"


def test_an_interrupted_run_or_a_failure_of_other_data_is_set_aside(rounds, decoded):
    said = {"round": 1, "message": "no", "data": "a mirror, aaaaaaaaaaaa"}
    store.RunFolder(AVG).write_record(store.FAILURE, said)
    assert store.diverged(AVG) is None
    with pytest.warns(DamagedWarning, match=r"failure\.json was trained on digits aaaaaaaaaaaa"):
        play(AVG)
    (store.folder(AVG) / store.PROVENANCE).unlink()
    decoded[0]("f" * 64)
    with pytest.warns(DamagedWarning, match=r"checkpoint\.safetensors was trained on digits"):
        play(AVG)
    assert rounds.played == 2 * AVG.rounds


# First stages


@pytest.mark.filterwarnings("ignore::fedrun.files.DamagedWarning")
def test_a_stage_is_served_only_with_the_first_stage_that_it_began_with(rounds, monkeypatch):
    """A first stage is exported with what follows it, and trained again on another processor."""
    other = replace(TUNED, algorithm=Local(batch_size=20))
    results = [play(e) for e in (AVG, TUNED)]
    export(results, "some")
    shutil.rmtree(paths.runs())
    there = AVG.rounds + TUNED.rounds
    assert [find_result(e).provenance for e in (AVG, TUNED)] == [r.provenance for r in results]
    play(other)  # trains the first stage again: the same bits, as it is the same processor
    assert rounds.played == 2 * there and find_result(TUNED) is not None
    shutil.rmtree(paths.runs())
    monkeypatch.setattr(provenance, "digest", lambda state: "another")
    play(other)
    assert find_result(AVG).provenance["state"] == "another", "and other bits, on another one"
    with pytest.warns(DamagedWarning, match=f"started from another {AVG.key} than the one stored"):
        assert find_result(TUNED) is None, "the new first stage is not what this one improves upon"
    played = rounds.played
    go([TUNED, other])
    assert rounds.played == played + TUNED.rounds and find_result(TUNED) is not None
    store.delete(AVG.key)
    assert find_result(AVG).provenance == results[0].provenance
    assert find_result(TUNED).provenance == results[1].provenance and find_result(other) is None


def test_a_sweep_trains_again_what_followed_a_first_stage_that_it_trains_again(rounds, monkeypatch):
    other = replace(TUNED, algorithm=Local(batch_size=20))
    export([play(e) for e in (AVG, TUNED)], "some")
    shutil.rmtree(paths.runs())
    monkeypatch.setattr(provenance, "digest", lambda state: "another")
    played = rounds.played
    with pytest.warns(DamagedWarning, match="started from another"):
        results = go([AVG, TUNED, other])
    assert rounds.played == played + AVG.rounds + 2 * TUNED.rounds
    began = [r.provenance["segments"][0].get("began_with") for r in results]
    assert began == [None, {AVG.key: "another"}, {AVG.key: "another"}]


# What is stored, and asked for


def test_a_run_under_the_key_of_another_is_not_served():
    play(MIX)
    shutil.copytree(store.folder(MIX), store.folder(AVG))
    with pytest.warns(DamagedWarning, match=f"another run than {AVG.key}"):
        assert find_result(AVG) is None


def test_a_run_is_trained_again_or_forgotten_when_asked(rounds, capsys):
    first = play(TUNED)
    export([play(MIX)], "some")
    run(TUNED, device="cpu", progress=False, again=True)
    assert rounds.played == AVG.rounds + 2 * TUNED.rounds + MIX.rounds, "its first stage is not"
    assert find_result(TUNED).metrics.equals(first.metrics)
    assert main(["forget", TUNED.key[:7]]) == 0 and find_result(TUNED) is None
    assert main(["forget", MIX.key]) == 0 and find_result(MIX) is not None, "what is exported stays"
    assert main(["forget", MIX.key]) == 2 and "is exported" in capsys.readouterr().err


def test_runs_of_classes_and_data_that_are_not_here_are_shown(imported, places, capsys, rounds):
    mine = of(imported())
    for one in (mine, own(False)):
        play(one)
    key, spec = mine.key, store.folder(mine) / store.SPEC
    assert main(["run", str(spec), "--device", "cpu"]) == 0 and rounds.played == 2 * AVG.rounds
    values._KINDS.pop("Mine")
    shutil.rmtree(places / "cache")
    capsys.readouterr()
    assert main(["runs"]) == 0
    said = capsys.readouterr().out
    assert "Mine, not imported here" in said and said.count("2  complete") == 2
    (other,) = [e.key for e in store.list_runs() if e.key != key and not e.experiment]
    for one, word in ((key, "algorithm=Mine(batch_size=5)"), (other, "dataset='users_own'")):
        assert main(["show", one]) == 0
        said = capsys.readouterr().out
        assert word in said and "made_of: " in said and "train_loss" in said
    assert main(["run", str(spec)]) == 2 and "kind of value 'Mine'" in capsys.readouterr().err
    sys.modules.pop("module_of_users")
    assert main(["run", str(spec), "--import", "module_of_users"]) == 0
    assert rounds.played == 2 * AVG.rounds
    assert main(["show", key, "--import", "no_such_module"]) == 2


SCRIPT = """
from torch.nn.functional import cross_entropy
from fedlib import FedAvg, value
from fedrun import compare, run, tiny
from dataclasses import replace

@value
class Mine(FedAvg):
    "Words."
    tau: float = 1.0

    def loss(self, net, params, ctx, batch):
        "Words."
        assert self.tau > 0, "never"
        losses = cross_entropy(net(params, batch.x, batch), batch.y, reduction="none")
        return (losses * batch.weight).sum() / batch.weight.sum()

for algorithm in (FedAvg(batch_size=10), Mine(batch_size=10)):
    result = run(replace(tiny, algorithm=algorithm), progress=False)
    print(result.experiment.key, result.provenance["state"], compare({"it": [result]})[0].mean)
"""


@pytest.mark.slow
def test_options_of_the_interpreter_change_neither_keys_nor_bits(tmp_path):
    """Without docstrings and assertions, with warnings as errors, and in Python's development mode.

    Reported of others: xarray 1706, datalad 2461, transformers 29689, werkzeug 2164.
    """
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    said = []
    for i, options in enumerate(("", "-OO", "-W error -X dev -P")):
        call = [sys.executable, *options.split(), str(script)]
        env = os.environ | {"FEDLIB_RUNS": str(tmp_path / f"{i}")}
        done = subprocess.run(call, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert len(said[0].split()) == 6 and set(said) == {said[0]}


def test_again_does_not_go_on_from_a_shorter_run(rounds):
    play(MIX)
    longer = replace(MIX, rounds=MIX.rounds + 1)
    found = run(longer, device="cpu", progress=False, again=True)
    assert rounds.played == 2 * MIX.rounds + 1
    assert [part["rounds"] for part in found.provenance["segments"]] == [[0, longer.rounds]]


def test_what_is_exported_has_the_key_of_the_code_that_trained_it(imported, monkeypatch):
    module = imported()
    result = play(of(module))
    monkeypatch.setattr(module, "RATE", 2.0)
    assert result.experiment.key != result.pinned.key
    export([result], "some")
    shutil.rmtree(paths.runs())
    assert find_result(of(module)) is None
    monkeypatch.setattr(module, "RATE", 1.0)
    assert find_result(of(module)).metrics.num_rows == result.metrics.num_rows
