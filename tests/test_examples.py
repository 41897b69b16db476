"""The examples run as they stand, in a store of their own, and do what they say."""

import importlib
import itertools
import re
import runpy
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small import MIX, interrupted, play

import fedlib
import fedrun
from fedlib import paths, values
from fedrun import run, simulate, store, tiny

EXAMPLES = sorted((paths.ROOT / "examples").glob("*.py"))
SAID = {
    "first": r"round 0: accuracy 0\.\d+\nround 10: accuracy (0\.\d+)\nround 20: accuracy 0\.\d+",
    "algorithm": r"FedAvg: (0\.\d+) \(.*\), 3 seeds\ndecayed: 0\.\d+ ",
    "callbacks": r"round,metric,value\n0,examples,20\.0\n(?s:.*)\n2,test_accuracy,0\.\d+\n",
    "network": r"accuracy (0\.\d+)\nClassifier of \d+ parameters\nexported with outputs \[2, 10\]",
    "own_data": r"cellar 2 on new bottles: (\d\.\d+), balanced .*\n\[\[",
    "secure_sum": r"sent: .*\nsum: \[0\.75, 0\.25\]\nFedAvg: accuracy 0\.\d+\n",
    "sweep": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs_and_learns(file, places, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(file), str(tmp_path / "figure.png")])
    apart = {n: kind for n, kind in values._KINDS.items() if n != "SecureSum"}
    monkeypatch.setattr(values, "_KINDS", apart)  # tests import this example, too
    found = runpy.run_path(str(file), run_name="__main__")
    told = re.match(SAID[file.stem], capsys.readouterr().out)
    assert told and all(float(accuracy) > 0.3 for accuracy in told.groups())
    assert ("figure" in found) == (tmp_path / "figure.png").is_file()


@pytest.fixture
def callbacks():
    return SimpleNamespace(**runpy.run_path(str(paths.ROOT / "examples" / "callbacks.py")))


def test_a_resumed_run_has_every_round_once_in_its_csv_file(callbacks, tmp_path):
    """One that is longer than a stored one, resumed from a checkpoint, or after it was stopped."""
    tables = []
    for i, before in enumerate((0, 1, 3)):
        path = tmp_path / f"{i}.csv"
        if before:  # a round later than where the run below goes on
            for moment in itertools.islice(simulate(MIX), before + 2):
                callbacks.CSV(path)(moment)
            interrupted(MIX, before)
        run(MIX, progress=False, callbacks=[callbacks.CSV(path)], again=not before)
        store.delete(MIX.key)
        tables.append(path.read_text().splitlines())
    assert tables[0] == tables[1] == tables[2] and tables[0].count("round,metric,value") == 1
    play(replace(MIX, rounds=2))
    run(MIX, progress=False, callbacks=[callbacks.CSV(tmp_path / "new.csv")])
    head, *rows = (tmp_path / "new.csv").read_text().splitlines()
    assert head == "round,metric,value" and rows == [r for r in tables[0] if r[0] in "345"]
    for metric, by_round in (
        (m, fedrun.find_result(MIX).curve(m)) for m in ("train_loss", "test_nll")
    ):
        told = [row.split(",") for row in tables[0] if f",{metric}," in row]
        assert {int(at): float(v) for at, _, v in told} == pytest.approx(by_round)


@pytest.mark.parametrize("name", ["TensorBoard", "WandB"])
def test_every_metric_is_logged_by_round(name, callbacks, monkeypatch):
    """In the order of the calls; packages that the environment lacks are played here."""
    calls = []

    class Recorder:
        def __init__(self, *where, **options):
            calls.append((where, options))

        def __getattr__(self, method):
            return lambda *args, **more: calls.append((method, *args, *more.values()))

    board = SimpleNamespace(SummaryWriter=Recorder)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Recorder))
    moments = [*simulate(tiny)]
    rounds = [(moment.round, moment.metrics) for moment in moments]
    if name == "TensorBoard":
        log, first = callbacks.TensorBoard("logs"), (("logs",), {})
        each = [[("add_scalar", n, v, t) for n, v in m.items()] + [("flush",)] for t, m in rounds]
        expected = [first, *itertools.chain(*each)]
    else:
        log = callbacks.WandB(project="mine")
        first = ((), {"config": fedlib.values.to_dict(tiny), "project": "mine"})
        expected = [first, *(("log", m, t) for t, m in rounds), ("finish",)]
    for moment in moments:
        log(moment)
    assert calls == expected


def test_a_run_stops_where_a_callback_says_so(callbacks):
    moment = [*simulate(tiny)][-1]
    asked = [{}, {"test_accuracy": 0.9}, {"test_accuracy": 0.91}]
    assert [callbacks.accurate(moment._replace(metrics=m)) for m in asked] == [False, False, True]


@pytest.mark.parametrize("name", ["CSV", "TensorBoard", "WandB"])
def test_callbacks_of_0_2_keep_their_names_for_a_version(name, monkeypatch):
    with pytest.warns(DeprecationWarning, match=f"{name} is in examples/callbacks.py now"):
        found = getattr(fedlib, name)
    assert found is getattr(fedlib.callbacks, name)
    assert name not in dir(fedlib) and (name != "CSV" or found("a.csv").path.name == "a.csv")
    monkeypatch.setattr(paths, "IN_CHECKOUT", False)
    monkeypatch.delitem(sys.modules, "fedlib.callbacks")
    with pytest.raises(ImportError, match=r"an example now, examples/callbacks\.py"):
        importlib.import_module("fedlib.callbacks")
