"""The command line: it does what it is asked, and says what was wrong with the question."""

import json
import os
import subprocess
import sys

import pytest
from small import AVG, BAD, MIX, TASK, play, running

from fedlib import data as datasets
from fedlib.cli import commands, main
from fedlib.cli.commands import show_table
from fedlib.runs import export, find, store
from fedlib.values import to_dict

PARTS = ["--task", repr(TASK), "--rounds", "2", "--cohort", "2", "--evaluate-every", "5"]


@pytest.fixture
def ask(capsys):
    """Ask something; return the exit code, what was said, and what was complained of."""

    def ask(*arguments):
        code = main([str(a) for a in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return ask


@pytest.mark.slow
def test_help_is_quick_and_needs_no_torch():
    code = "import sys, fedlib.cli as c; c.main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for command in ("run", "sweep", "runs", "show", "algorithms", "data"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_nobody_reads_is_no_error(unbuffered):
    command = [sys.executable, "-m", "fedlib", "--help"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=env, timeout=300)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_every_command_runs_without_what_a_notebook_needs():
    code = """
import sys
for name in ("IPython", "ipykernel", "ipywidgets", "matplotlib", "pandas", "ray", "seaborn"):
    sys.modules[name] = None
import fedlib.cli.commands
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["code", "spec", "parts"])
def test_run_trains_what_it_is_given(ask, tmp_path, how):
    (tmp_path / "spec.json").write_text(json.dumps(to_dict(AVG)))
    given = {
        "code": [repr(AVG)],
        "spec": [tmp_path / "spec.json"],
        "parts": [*PARTS, "--algorithm", "FedAvg"],
    }[how]
    code, said, _ = ask("run", *given, "--plan")
    assert code == 0 and said.startswith(f"{AVG.key}  missing  {AVG}\n") and find(AVG) is None
    code, said, _ = ask("run", *given, "--device", "cpu")
    assert code == 0 and find(AVG) is not None
    assert f"stored in {store.folder(AVG)}" in said and "best on validation" in said
    assert ask("run", *given, "--plan")[1].startswith(f"{AVG.key}  stored ")


def test_parts_are_values(ask):
    options = ["--set", "experts=2", "--set", 'server=Optimizer("adam", lr=0.003)']
    options += ["--set", "weighting=uniform", "--seed", 4]
    code, said, _ = ask("run", *PARTS, "--algorithm", "FedMix", *options, "--plan")
    assert code == 0
    assert "server=Optimizer(name='adam', lr=0.003), weighting='uniform', experts=2)" in said
    assert "seed=4" in said
    said = ask("run", *PARTS[:2], "--rounds", 1, "--algorithm", "FedAvg", "--cohort", "1.0",
               "--plan")[1]  # fmt: skip
    assert "cohort=1.0" in said


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        (["rnu"], "Did you mean 'run'"),
        (["run", "--taks", "x"], "--task"),
        (["tune"], "tune is a word of `python -m papers`"),
        (["sweep", "--recipe=label_skew"], "--recipe=label_skew is a word of `python -m papers`"),
        (["run"], "name experiments: CODE, FILE, or --task"),
        (["run", repr(AVG), "--seed", "3"], "--seed says nothing beside Experiment(task="),
        (["run", *PARTS[:2], "--rounds", "0"], "greater than or equal to 1"),
        (
            ["sweep", *PARTS, "--algorithm", "FedAvg", "--seed", "0,x"],
            "--seed must be whole numbers",
        ),
        (["run", "Experimant()"], "did you mean 'Experiment'?"),
        (["run", "Experiment(rounds=3)"], "Experiment needs task, algorithm"),
        (["run", "FedAvg()"], "not an experiment: FedAvg()"),
        (["run", "nowhere.json"], "cannot read nowhere.json"),
        (["run", *PARTS, "--algorithm", "FedAvg", "--set", "epoch=2"], "did you mean 'epochs'?"),
        (["run", *PARTS, "--algorithm", "FedAvg", "--set", "epochs"], "expected NAME=VALUE"),
        (["run", *PARTS, "--algorithm", "FedAvg", "--set", "epochs=x"], "epochs must be int"),
        (["run", *PARTS, "--algorithm", "FedAvg", "--set", "client=Optimiser()"], "'Optimizer'?"),
        (["run", repr(AVG), "--device", "cdua"], "unknown device 'cdua'"),
        (["run", repr(AVG), "--device", "cuda:63"], "is not there"),
        (
            ["run", "--task", "FedAvg()", *PARTS[2:], "--algorithm", "FedAvg"],
            "task must be Task, got FedAvg()",
        ),
        (["algorithms", "Locl"], "did you mean 'Local'?"),
        (["data", "fetch", "minst"], "did you mean 'mnist'?"),
        (["data", "fetch"], "needs the names"),
        (["show", "abc"], "no stored run begins with 'abc'"),
        (["runs", "--state", "compleat"], "did you mean 'complete'?"),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_a_wrong_question_is_code_2_and_says_what_was_meant(ask, question, complaint):
    code, _, err = ask(*question)
    assert code == 2 and complaint in err and err.startswith("fedlib: "), err
    assert "Traceback" not in err


def test_a_sweep_file_is_specs_or_lines(ask, tmp_path):
    specs, lines = tmp_path / "specs.json", tmp_path / "runs.txt"
    specs.write_text(json.dumps([to_dict(AVG), to_dict(MIX)]))
    lines.write_text(f"# two runs\n\n{AVG}\n  {MIX}\n")
    play(AVG)
    for file in (specs, lines):
        code, said, _ = ask("sweep", file, "--plan")
        assert code == 0 and said.endswith("2 experiments, 1 stored\n")
        assert f"{AVG.key}  stored   {AVG}" in said and f"{MIX.key}  missing  {MIX}" in said
    code, said, _ = ask("sweep", lines, "--device", "cpu")
    assert code == 0 and find(MIX) is not None and MIX.key[:8] in said
    lines.write_text(f"{AVG}\nExperiment(\n")
    code, _, err = ask("sweep", lines)
    assert code == 2 and "runs.txt, line 2: not the code of a value" in err
    specs.write_text("[{]")
    assert "specs.json is no JSON" in ask("sweep", specs)[2]
    lines.write_text("")
    assert ask("sweep", lines)[0] == 2


def test_a_sweep_of_parts(ask):
    given = [*PARTS, "--algorithm", "FedAvg", "--algorithm", "FedMix", "--plan"]
    assert ask("sweep", *given, "--seeds", "3")[1].endswith("6 experiments, 0 stored\n")
    said = ask("sweep", *given, "--seed", "0,7")[1]
    assert said.endswith("4 experiments, 0 stored\n") and "seed=7" in said


def test_runs_and_show_say_what_is_stored(ask, tmp_path):
    assert "0 of 0 runs" in ask("runs")[1]
    play(AVG)
    export([play(MIX)], "some")
    code, said, _ = ask("runs")
    assert code == 0 and said.endswith("kB\n") and "2 of 2 runs" in said
    assert ask("runs", "--state", "diverged")[1].endswith("0 of 2 runs, 0 bytes\n")
    assert len(ask("runs", "--algorithm", "FedMix", "--dataset", "digits")[1].splitlines()) == 3
    assert all(key in said for key in (AVG.key, MIX.key)) and said.count(" complete ") == 2
    code, said, _ = ask("show", MIX.key[:5])
    assert code == 0 and said.startswith(f"{MIX}\nkey {MIX.key}, 5/5 rounds, complete, ")
    for part in ("torch: ", "segments: ", "best on validation", "train_loss"):
        assert part in said
    code, said, _ = ask("show", MIX.key, "--curve", "train_loss")
    assert code == 0 and said.split()[:2] == ["round", "train_loss"]
    bars = [line.count("#") for line in said.splitlines()[1:]]
    assert len(bars) == MIX.rounds and (min(bars), max(bars)) == (0, 40)
    code, _, err = ask("show", MIX.key, "--curve", "train_los")
    assert code == 2 and "did you mean 'train_loss'?" in err
    code, _, err = ask("show", "")
    assert code == 2 and "is the beginning of 2 keys" in err and repr(AVG) in err
    wrong = MIX.key[:5] + "zz"
    assert f"did you mean {MIX.key}" in ask("show", wrong)[2]


def test_show_reads_what_is_there_of_a_damaged_or_interrupted_run(ask, monkeypatch):
    play(AVG)
    (store.folder(AVG) / store.METRICS).write_bytes(b"no parquet")
    said = ask("runs")[1]
    assert "damaged" in said and "metrics.parquet is no readable Parquet file" in said
    code, said, _ = ask("show", AVG.key)
    assert code == 0 and "note: " in said and "commit: " in said


def test_a_diverged_run_is_code_1_and_one_message(ask):
    code, _, err = ask("run", repr(BAD), "--device", "cpu")
    assert code == 1 and err.count("fedlib: round 0: the loss of client") == 1
    assert "Traceback" not in err and str(store.folder(BAD)) in err
    assert "diverged" in ask("runs")[1] and "message: round 0" in ask("show", BAD.key)[1]
    code, _, err = ask("run", repr(BAD), "--retry", "--device", "cpu")
    assert code == 1 and "round 0" in err
    for arguments in (["--debug", "run", repr(BAD)], ["run", repr(BAD), "--debug"]):
        with pytest.raises(FloatingPointError):
            main(arguments)


def test_no_cluster_is_code_1_and_one_message(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    given = ["sweep", *PARTS, "--algorithm", "FedAvg", "--address", "auto"]
    code, _, err = ask(*given)
    assert code == 1 and err.endswith('a Ray address needs Ray: pip install "fedlib[ray]"\n')


def test_a_sweep_with_a_failure_is_code_1(ask, tmp_path):
    file = tmp_path / "runs.txt"
    file.write_text(f"{BAD}\n{AVG}\n")
    code, _, err = ask("sweep", file, "--device", "cpu")
    assert code == 1 and "1 of 2 runs failed" in err and find(AVG) is not None


def test_ctrl_c_is_code_130_and_says_how_to_go_on(ask, monkeypatch, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "play_round", stop)
    code, _, err = ask("run", repr(AVG), "--device", "cpu")
    assert code == 130 and "the same command continues" in err
    (tmp_path / "runs.txt").write_text(f"{AVG}\n{MIX}")
    code, _, err = ask("sweep", tmp_path / "runs.txt", "--device", "cpu")
    assert code == 130 and "0 of 2 runs are done" in err and "the same call continues" in err


def test_a_full_disk_is_code_1(ask, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "file" / "runs"))
    code, _, err = ask("run", repr(AVG), "--device", "cpu")
    assert code == 1 and "cannot write the lock" in err and "FEDLIB_RUNS" in err


def test_an_error_of_the_library_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr(running, "play_round", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", repr(AVG), "--device", "cpu"])


def test_algorithms_are_listed_and_explained(ask):
    said = ask("algorithms")[1]
    for name in commands.algorithm_kinds():
        assert f"\n{name} " in said
    said = ask("algorithms", "FedMix")[1]
    assert "experts" in said and "Optimizer(name='adam', lr=0.001)" in said and "K" in said


def test_data_are_listed_fetched_and_verified(ask, monkeypatch):
    said = ask("data")[1]
    assert all(name in said for name in datasets.names())
    code, said, _ = ask("data", "fetch", "digits")
    assert code == 0 and said.startswith("digits: 1,437 + 360 examples")
    assert ask("data", "verify", "digits")[:2] == (0, "digits: sound\n")
    monkeypatch.setattr(datasets, "verify", lambda name: ["train.npy is short"])
    code, said, err = ask("data", "verify", "digits")
    assert code == 1 and said == "digits: 1 problems\n" and "train.npy is short" in err

    def lost(name):
        raise datasets.MissingDataError("nowhere")

    monkeypatch.setattr(datasets, "fetch", lost)
    assert ask("data", "fetch", "mnist") == (1, "", "fedlib: nowhere\n")


def test_a_table_shows_words_as_they_are(capsys):
    show_table(("a", "n"), [("[p=1]", 1), ("long", 22)])
    assert capsys.readouterr().out.split() == ["a", "n", "[p=1]", "1", "long", "22"]
