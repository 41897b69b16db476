"""The command line: it does what it is asked, and says what was wrong with the question."""

import json
import re
import sys
from dataclasses import replace

import pytest
from cases import refused
from small import AVG, BAD, MIX, TASK, play, running

from fedlib import FedAvg, adam, value
from fedlib import data as datasets
from fedlib.values import _KINDS, to_dict
from fedrun import Experiment, find_result, store
from fedrun.cli import main
from fedrun.results import export

TWO = f"Experiment({TASK}, FedMix(experts=2), rounds=2, cohort=1.0, seed=4)"
HERE = ["--device", "cpu"]


@pytest.fixture
def ask(capsys):
    """Ask something; return the exit code, what was said, and what was complained of."""
    return lambda *arguments: (main([str(a) for a in arguments]), *capsys.readouterr())


@pytest.fixture
def write(tmp_path):
    """Write a file and return where it is."""

    def write(name, *lines):
        (tmp_path / name).write_text("\n".join(map(str, lines)))
        return tmp_path / name

    return write


@pytest.mark.parametrize("how", ["code", "spec"])
def test_run_trains_what_it_is_given(ask, write, how):
    spec = write("spec.json", json.dumps(to_dict(AVG)))
    given = {"code": repr(AVG), "spec": spec}[how]
    code, said, _ = ask("run", given, "--plan")
    assert code == 0 and said.startswith(f"{AVG.key}  missing  {AVG}\n")
    assert find_result(AVG) is None
    code, said, _ = ask("run", given, *HERE)
    assert code == 0 and find_result(AVG) is not None
    assert f"key {AVG.key}" in said and "test accuracy" in said
    assert ask("run", given, "--plan")[1].startswith(f"{AVG.key}  stored ")


def test_the_accuracy_that_is_told_is_that_of_the_state_that_was_kept(ask):
    kept = Experiment(TASK, FedAvg(batch_size=5, client=adam(0.05)), 8, 4, 0, 2, select="best")
    result = play(kept)
    end, last = result.final("test_accuracy"), result.curve("test_accuracy")[8]
    assert f"{end:.4f}" != f"{last:.4f}", "the last round would prove nothing"
    assert ask("run", repr(kept), *HERE)[1].split()[-1] == f"{end:.4f}"


@refused("fedlib")
def test_a_wrong_question_is_code_2_and_says_what_was_meant(ask, code, message):
    ended, _, err = ask(*code.split())
    assert ended == 2 and re.search(message, err) and err.startswith("fedlib: "), err
    assert "Traceback" not in err


def test_a_sweep_file_is_specs_or_lines(ask, write):
    play(AVG)
    specs = write("specs.json", "\ufeff" + json.dumps([to_dict(AVG), to_dict(MIX)]))
    lines = write("runs.txt", "# two runs", "", AVG, f"  {MIX}", "")
    for file in (specs, lines):
        code, said, _ = ask("sweep", file, "--plan")
        assert code == 0 and said.endswith("2 experiments, 1 stored\n")
        assert f"{AVG.key}  stored   {AVG}" in said and f"{MIX.key}  missing  {MIX}" in said
    code, said, _ = ask("sweep", lines, *HERE)
    assert code == 0 and find_result(MIX) is not None and MIX.key[:8] in said


WRONG = {  # files, by what they hold
    "runs.txt": (f"{AVG}\nExperiment(", "line 2: not the code of a value"),
    "specs.json": ("[{]", "specs.json: Expecting"),
    "deep.json": ("[" * 100000, "deep.json: maximum recursion depth"),
    "none.txt": ("", "there is no experiment in '/"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_sweep_file_that_cannot_be_read_is_code_2(ask, write, name):
    text, complaint = WRONG[name]
    code, _, err = ask("sweep", write(name, text))
    assert code == 2 and complaint in err


def test_runs_and_show_say_what_is_stored(ask):
    assert ask("runs")[1].endswith("0 runs\n")
    play(AVG)
    export([play(MIX)], "some")
    code, said, _ = ask("runs")
    assert code == 0 and said.endswith("\n2 runs\n")
    _, *told = [line.split() for line in said.splitlines()[:3]]
    ends = [f"{find_result(e).final('test_accuracy'):.6g}" for e in (AVG, MIX)]
    assert [line[-2:] for line in told] == [["complete", end] for end in ends], "newest last"
    assert all(key in said for key in (AVG.key, MIX.key))
    code, said, _ = ask("show", MIX.key[:5])
    assert code == 0 and said.startswith(f"{MIX}\nkey {MIX.key}, 5/5 rounds, complete, ")
    assert all(part in said for part in ("torch: ", "segments: ", "train_loss"))
    said = ask("show", MIX.key, "--curve", "train_loss")[1].splitlines()
    assert said[0].split() == ["round", "train_loss"] and len(said) == 1 + MIX.rounds
    code, _, err = ask("show", MIX.key, "--curve", "train_los")
    assert code == 2 and "did you mean 'train_loss'?" in err
    assert "2 stored runs begin with ''" in ask("show", "")[2]
    store.delete(MIX.key)
    assert ask("runs")[1].endswith("\n1 runs; 1 exported results: --all\n")
    assert MIX.key in ask("runs", "--all")[1] and MIX.key not in ask("runs")[1]
    assert not re.search(" $", ask("data")[1], re.MULTILINE), "lines are as long as their words"


def test_a_run_of_a_class_that_is_not_imported_is_listed_with_its_accuracy(ask, monkeypatch):
    @value
    class Elsewhere(FedAvg):
        pass

    play(replace(AVG, algorithm=Elsewhere()))
    told = ask("runs")[1].splitlines()[1]
    monkeypatch.delitem(_KINDS, "Elsewhere")
    line = ask("runs")[1].splitlines()[1]
    assert "Elsewhere, not imported here" in line and line.split()[-2] == "complete"
    assert line.split()[-1] == told.split()[-1]


@pytest.mark.parametrize("question", ["runs", "show abc"])
def test_a_store_that_is_a_file_is_no_empty_one(ask, write, monkeypatch, question):
    monkeypatch.setenv("FEDLIB_RUNS", str(write("a_file", "")))
    code, _, err = ask(*question.split())
    assert code == 1 and re.search("FEDLIB_RUNS: .*a_file is a file, not a folder", err)


def test_a_damaged_run_is_listed_and_shown_to_be_damaged(ask):
    play(AVG)
    (store.folder(AVG) / store.METRICS).write_bytes(b"no parquet")
    said = ask("runs")[1]
    assert "damaged" in said and "metrics.parquet is no readable Parquet file" in said
    assert ask("show", AVG.key)[0] == 1


def test_a_diverged_run_is_code_1_and_one_message(ask, write):
    code, _, err = ask("run", repr(BAD), *HERE)
    assert code == 1 and err.count("fedlib: round 0: the loss of client") == 1
    assert "Traceback" not in err and str(store.folder(BAD)) in err
    assert "diverged" in ask("runs")[1] and "message: round 0" in ask("show", BAD.key)[1]
    code, _, err = ask("run", repr(BAD), "--retry", *HERE)
    assert code == 1 and "round 0" in err
    code, _, err = ask("sweep", write("runs.txt", BAD, AVG), *HERE)
    assert code == 1 and "1 of 2 runs failed" in err and find_result(AVG) is not None


def test_no_cluster_is_code_1_and_one_message(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = ask("sweep", TWO, "--address", "auto")
    assert code == 1 and err.endswith('a Ray address needs Ray: pip install "fedlib[ray]"\n')


def test_ctrl_c_is_code_130_and_says_how_to_go_on(ask, monkeypatch, write):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "play_round", stop)
    for words in (("run", repr(AVG)), ("sweep", write("runs.txt", AVG, MIX))):
        code, _, err = ask(*words, *HERE)
        assert code == 130 and "the same command continues" in err


def test_an_error_of_the_library_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr(running, "play_round", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", repr(AVG), *HERE])


def test_data_are_listed_and_fetched(ask, monkeypatch):
    said = ask("data")[1]
    assert all(name in said for name in datasets.names())
    code, said, _ = ask("data", "fetch", "digits")
    assert code == 0 and said.startswith("digits: 1,437 + 360 examples")

    def lost(name):
        raise datasets.DatasetError("nowhere")

    monkeypatch.setattr(datasets, "load", lost)
    assert ask("data", "fetch", "mnist") == (1, "", "fedlib: nowhere\n")
