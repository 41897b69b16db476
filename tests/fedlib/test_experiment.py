"""Runs: trained once, resumed to the same bits, stored, exported, and found again."""

import json
import math
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from cases import refused
from playing import equal
from small import AVG, MIX, TASK, Rounds, bits, play, undisturbed

import fedrun
from fedlib import (
    F1,
    MLP,
    Dirichlet,
    LocalHoldout,
    OptOut,
    QuantitySkew,
    Task,
    adam,
    interval,
    paths,
    value,
)
from fedlib.algorithms import IFCA, FedAvg, FedMix, Local, Mixture
from fedlib.engine import EarlyStop, Selection, evaluate, evaluate_everywhere, evaluate_global
from fedlib.engine.as_module import Trained
from fedlib.federation import ClientData
from fedlib.values import from_dict
from fedrun import (
    CohortEarlyStop,
    Experiment,
    compare,
    find_result,
    run,
    run_with_state,
    simulate,
    store,
    tiny,
)
from fedrun.experiment import Log
from fedrun.results import export, exported
from fedrun.train import LOGGED, best_of


@pytest.fixture
def rounds(monkeypatch):
    return Rounds(monkeypatch)


@pytest.fixture
def metrics():
    return play(MIX).metrics.to_pandas()


def test_metrics_are_tidy(metrics):
    assert [*metrics] == ["round", "metric", "client", "expert", "item", "value"]
    kinds = [str(metrics[name].dtype) for name in ("round", "client", "expert", "value")]
    assert kinds == ["int32", "int32", "int16", "float64"]
    assert metrics.drop(columns="value").duplicated().sum() == 0
    gates = metrics["metric"].str.endswith("_gate")  # nan for a label that no client holds
    assert np.isfinite(metrics["value"][~gates]).all()
    at = metrics.groupby("metric")["round"].unique().map(sorted).to_dict()
    for split in ("validation", "test"):
        scores = metrics[metrics["metric"] == f"{split}_accuracy"]
        assert at[f"{split}_accuracy"] == at[f"{split}_nll"] == at[f"{split}_gate"] == [0, 2, 4, 5]
        assert sorted(scores[scores["round"] == 2]["client"]) == list(range(6))
        assert scores["value"].between(0, 1).all()
        adapted = metrics[metrics["metric"] == f"adapted_{split}_accuracy"]
        assert adapted["value"].between(0, 1).all()
        assert adapted.groupby("round")["client"].nunique().to_dict() == dict.fromkeys((2, 4, 5), 3)
    for metric in ("train_loss", "bytes_down", "bytes_up", "divergence"):
        assert at[metric] == [1, 2, 3, 4, 5]
    assert at["global_accuracy"] == at["q"] == [0, 2, 4, 5]
    assert at["everywhere_accuracy"] == [5] and at["q_entropy"] == [0, 1, 2, 3, 4, 5]


def test_metrics_say_who_and_what(metrics):
    q = metrics[(metrics["metric"] == "q") & (metrics["round"] == 5)]
    assert set(q["item"]) == set(map(str, range(10))) and set(q["expert"]) == {0, 1}
    np.testing.assert_allclose(q.groupby("item")["value"].sum(), 1, rtol=1e-5)
    assert (q["client"] == -1).all()
    for item, experts in (("experts.head.bias", [0, 1]), ("phi", [-1])):
        rows = metrics[(metrics["item"] == item) & (metrics["round"] == 3)]
        assert list(rows["expert"]) == experts


def test_the_last_scores_are_those_of_the_final_state():
    result, state = run_with_state(MIX, device="cpu", progress=False)
    fed, algorithm = TASK.build(MIX.seed, "cpu"), MIX.algorithm
    expected = {
        "everywhere_accuracy": evaluate_everywhere(fed, algorithm, state).tolist(),
        "test_accuracy": evaluate(fed, algorithm, state, fed.test).accuracy.tolist(),
        "global_accuracy": [evaluate_global(fed, algorithm, state)],
    }
    for metric, values in expected.items():
        logged = result.select(metric).to_pandas()
        assert logged[logged["round"] == 5]["value"].tolist() == values
    own = [t[0] for t in state.client_params.values()]
    mine = sum(t.nbytes for t in (*state.server_params.values(), *own))
    assert result.provenance["client_mib"] == pytest.approx(mine / 2**20, abs=1e-4)


AT_HALF = {"rounds": 8, "cohort": 4, "evaluate_every": 2, "select": "best"}
WORSENING = Experiment(TASK, FedAvg(batch_size=5, client=adam(0.05)), **AT_HALF)
ALONE = replace(WORSENING, algorithm=Local(client=adam(0.1)))
ALONE_AFTER = replace(WORSENING, algorithm=Local(batch_size=5), rounds=3, first_stage=WORSENING)


def test_a_second_stage_starts_where_the_first_ended_and_leaves_it_alone(rounds):
    tuned = Experiment(TASK, Local(batch_size=5), 2, cohort=6, evaluate_every=1, first_stage=AVG)
    result, first, home = play(tuned), find_result(AVG), store.folder(AVG)
    assert rounds.played == AVG.rounds + tuned.rounds
    kept = {p.name: p.read_bytes() for p in home.iterdir()}
    for metric in ("test_accuracy", "test_nll"):
        end, begin = first.select(metric).to_pandas(), result.select(metric).to_pandas()
        end, begin = end[end["round"] == AVG.rounds], begin[begin["round"] == 0]
        np.testing.assert_allclose(begin["value"], end["value"], rtol=1e-5)
    assert (result.select("bytes_down").to_pandas()["value"] == 0).all()
    other = replace(tuned, rounds=1, algorithm=Local(batch_size=6))
    play(other)
    assert rounds.played == AVG.rounds + tuned.rounds + 1
    assert kept == {p.name: p.read_bytes() for p in home.iterdir()}
    assert tuned.key != other.key != replace(other, first_stage=None).key


def kept(metrics):
    """The round with the least mean validation nll, by hand."""
    rows = metrics[metrics["metric"] == "validation_nll"]
    return int(rows.groupby("round")["value"].mean().idxmin())


def test_a_run_can_end_with_its_best_state():
    result, state = run_with_state(WORSENING, device="cpu", progress=False)
    best = kept(result.metrics.to_pandas())
    assert 0 < best < 8, "the last round would prove nothing"
    assert result.select("kept_round").to_pandas()["value"].tolist() == [best]
    fed = TASK.build(0, "cpu")
    scores = evaluate(fed, WORSENING.algorithm, state, fed.test).accuracy.tolist()
    short = replace(WORSENING, rounds=best, select="last")
    assert equal(run_with_state(short, progress=False)[1].server_params, state.server_params)
    stage = Experiment(TASK, Local(), 1, cohort=1.0, evaluate_every=1, first_stage=WORSENING)
    for at, one in ((best, result), (0, play(stage))):
        logged = one.select("test_accuracy").to_pandas()
        assert logged[logged["round"] == at]["value"].tolist() == scores


def test_the_best_state_is_told_by_those_who_take_part():
    """Whoever opted out shows the server no validation loss."""
    rows = [(0, 0, 3.0), (0, 1, 1.0), (2, 0, 2.0), (2, 1, 9.0), (4, 0, 2.0), (4, 1, 0.0)]
    log, nothing = Log(), Log()
    for at, client, nll in rows:
        log.add(at, "validation_nll", nll, client=client)
        nothing.add(at, "validation_nll", math.nan, client=client)
    assert best_of(log.table(), [0]) == 2, "the first of equals"
    assert best_of(log.table(), [0, 1]) == 4
    with pytest.raises(ValueError, match="no validation examples"):
        best_of(nothing.table(), [0])


LACKING = Task("digits", QuantitySkew(30, 0.3, least=1), MLP((8,)), LocalHoldout(test=0.2))


@pytest.mark.parametrize("algorithm", [FedMix(experts=2), Local(stop=EarlyStop(every=1))], ids=repr)
def test_clients_without_test_or_validation_examples_are_no_failure(algorithm):
    fed = LACKING.build(0)
    result = play(Experiment(LACKING, algorithm, rounds=2, cohort=30, evaluate_every=1))
    assert result.select("train_loss").to_pandas()["value"].notna().all()
    for split, sizes in (("validation", fed.validation.sizes), ("test", fed.test.sizes)):
        assert 0 < (sizes == 0).sum() < len(sizes)
        for metric in (f"{split}_accuracy", f"{split}_nll"):
            for _, rows in result.select(metric).to_pandas().groupby("round"):
                assert rows.sort_values("client")["value"].isna().tolist() == (sizes == 0).tolist()


@pytest.mark.parametrize("validation", [0.0, 0.2])
@pytest.mark.parametrize(
    "algorithm", [FedAvg(), FedMix(experts=2), IFCA(), Mixture(epochs=2)], ids=repr
)
def test_all_examples_may_be_for_training_and_validation(algorithm, validation):
    held = LocalHoldout(test=0, validation=validation)
    task = replace(TASK, held_out=held)
    first = Experiment(task, FedAvg(), 2, 3) if isinstance(algorithm, Mixture) else None
    result = play(Experiment(task, algorithm, 2, 3, first_stage=first, metrics=(F1(),)))
    for metric in ("test_accuracy", "test_f1", "global_accuracy", "everywhere_accuracy"):
        assert math.isnan(result.final(metric)), metric
    assert math.isnan(result.final("validation_f1")) == (not validation)
    assert {"expert_accuracy", "gate_share"}.isdisjoint(result.logged)
    if type(algorithm) is FedAvg:
        assert not isinstance(result.model(), Trained), "the network itself is the model"


def test_an_exported_result_comes_back_its_state_is_trained_again(rounds, monkeypatch, tmp_path):
    result = play(MIX)
    target = export([result], "some")
    assert target == paths.results() / "some.parquet" and target.stat().st_size < 50_000
    (back,) = exported()
    assert back.experiment == MIX and repr(back.experiment) == repr(MIX)
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "empty"))
    found = play(MIX)
    assert rounds.played == MIX.rounds and found.provenance == result.provenance
    assert found.metrics.drop_columns("value").equals(result.metrics.drop_columns("value"))
    assert found.curve("test_accuracy") == result.curve("test_accuracy")
    assert found.curve("test_nll") == pytest.approx(result.curve("test_nll"), rel=1e-4)
    _, state = run_with_state(MIX, device="cpu", progress=False)
    assert rounds.played == 2 * MIX.rounds and state.server_params


def test_run_folders_come_before_exported_results():
    result = play(AVG)
    changed = result.metrics.set_column(5, "value", pa.array([0.5] * len(result.metrics)))
    export([type(result)(AVG, changed, {"told": "exported"})], "some")
    assert find_result(AVG).provenance == result.provenance
    (store.folder(AVG) / "provenance.json").unlink()
    assert find_result(AVG).provenance == {"told": "exported"}
    assert set(find_result(AVG).metrics["value"].to_pylist()) == {0.5}


def test_a_run_folder_says_what_it_is_and_its_provenance_where_and_with_what():
    said, home = play(AVG).provenance, store.folder(AVG)
    assert sorted(p.name for p in home.iterdir()) == [
        "checkpoint.safetensors", "metrics.parquet", "provenance.json", "spec.json",
    ]  # fmt: skip
    assert from_dict(json.loads((home / "spec.json").read_text())) == AVG
    assert set(said) == {
        "commit", "python", "torch", "numpy", "device", "processor", "instructions", "threads",
        "pinned", "seconds", "cpu_seconds", "client_mib", "data", "state", "segments",
    }  # fmt: skip
    assert said["torch"] == torch.__version__
    assert said["data"].startswith("embedded in scikit-learn, ")
    assert said["seconds"] >= 0
    assert str(Path.home()) not in json.dumps(said)


LONGER = [
    *((MIX, short) for short in (1, 3)),
    (replace(MIX, evaluate_every=0), 2),
    (WORSENING, 6),
    (ALONE, 5),
    (Experiment(TASK, IFCA(clusters=2), 5, cohort=3, evaluate_every=3, audit_labels=True), 4),
    (replace(WORSENING, algorithm=Local(batch_size=5), rounds=3, first_stage=AVG), 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "short"), LONGER)
def test_more_rounds_of_a_finished_run_continue_it(rounds, tmp_path, experiment, short):
    """With the bits of one long run, though a last round is scored that is none of a longer one."""
    play(replace(experiment, rounds=short))
    before = rounds.played
    play(experiment)
    # Of one round alone nobody can tell what an unscored one logs.
    alone = short == 1 and not experiment.evaluates(short)
    assert rounds.played - before == experiment.rounds - (0 if alone else short)
    parts = store.RunFolder(experiment).restore().segments
    assert [part["rounds"] for part in parts][-1][1] == experiment.rounds
    assert bits(experiment) == undisturbed(experiment, tmp_path)


def test_few_functions_lead_from_a_run_to_its_first_batch(monkeypatch):
    """A reader who follows a run visits these, in this order."""
    frames, batches = [], ClientData.batches

    def seen(*args, **how):
        if not frames:
            frames.extend(one.name for one in traceback.extract_stack())
        return batches(*args, **how)

    monkeypatch.setattr(ClientData, "batches", seen)
    run(AVG, device="cpu", progress=False)
    path = frames[-1 - frames[::-1].index("run") : -1]
    assert path[:4] == ["run", "_trained", "play", "rounds"] and len(path) <= 12, path


def test_a_best_state_that_a_longer_run_does_not_score_is_of_no_use(rounds):
    """Round 3 is scored because it is the last, and is the best so far."""
    improving = Experiment(TASK, FedAvg(batch_size=5), 5, 4, evaluate_every=2, select="best")
    ended = play(replace(improving, rounds=3)).select("kept_round")["value"].to_pylist()
    assert ended == [3.0]
    play(improving)
    assert rounds.played == 3 + improving.rounds


def test_callbacks_see_every_round_and_may_stop_a_run(rounds):
    seen = []

    def stop(moment):
        seen.append((moment.round, moment.metrics.get("train_loss")))
        assert moment.state.server_params and moment.experiment == MIX
        return moment.round == 3

    stopped = run(MIX, device="cpu", progress=False, callbacks=[stop])
    assert [at for at, _ in seen] == [0, 1, 2, 3] and find_result(MIX) is None
    whole = run(MIX, device="cpu", progress=False, callbacks=[lambda m: seen.append((m.round, 0))])
    assert [at for at, _ in seen] == [0, 1, 2, 3, 4, 5] and rounds.played == 5
    curve = whole.curve("train_loss")
    assert [loss for _, loss in seen[1:4]] == pytest.approx([curve[t] for t in (1, 2, 3)])
    # It ended after round 3, which is not scored: what is logged of round 0 is another state's.
    assert stopped.final("train_loss") == stopped.curve("train_loss")[3]
    assert whole.final("test_accuracy") == whole.curve("test_accuracy")[MIX.rounds]
    done = r"no 'test_accuracy' for its final state, after round 3 \(unfinished: 3 of 5 rounds;"
    for ask in (stopped.final, lambda metric: compare({"stopped": [stopped]}, metric)):
        with pytest.raises(ValueError, match=done):
            ask("test_accuracy")


def test_a_device_is_checked_also_where_the_run_is_stored():
    play(AVG)
    with pytest.raises(ValueError, match=r"unknown device 'cdua'.*did you mean 'cuda'"):
        run(AVG, device="cdua")


def test_a_value_for_each_client_by_its_name():
    """Of the state that the run ended with; clients without names are called by their ids."""
    result = play(WORSENING)
    rows, (kept,) = result.select("test_accuracy").to_pandas(), result.curve("kept_round").values()
    last = rows[rows["round"] == kept].set_index("client")["value"]
    assert result.per_client() == last.to_dict() and kept < WORSENING.rounds
    made = {**result.provenance, "client_names": [f"w{i}" for i in last.index]}
    named = replace(result, provenance=made).per_client("validation_nll")
    assert [*named] == made["client_names"] and len(repr(result)) < 500


@refused("compared")
def test_what_cannot_be_compared_is_refused(code, message):
    """An end that a range lacks was a TypeError of numpy's, or an interval of NaN."""
    names = {**{name: getattr(fedrun, name) for name in dir(fedrun)}, "interval": interval}
    names |= {"one": run(tiny, progress=False), "math": math, "F1": F1, "replace": replace}
    with pytest.raises((TypeError, ValueError), match=message):
        eval(code, names)


@pytest.mark.parametrize("experiment", [MIX, WORSENING, ALONE_AFTER], ids=repr)
def test_a_simulation_is_a_run_that_is_not_stored(experiment):
    moments = [(m.round, m.metrics) for m in simulate(experiment, device="cpu")]
    assert not paths.runs().exists()
    assert [at for at, _ in moments] == [*range(experiment.rounds + 1)]
    result = play(experiment)
    for metric in ("train_loss", "test_accuracy", "bytes_up"):
        found = {at: means[metric] for at, means in moments if metric in means}
        assert found == pytest.approx(result.curve(metric))


@value
class Observing(FedAvg):
    """FedAvg of which a test says what is logged."""


NUMBERS = {"tau": 0.5, "count": 3, "both": np.array([0.25, 0.75]), "some": [1.0, 2.0]}


def test_what_an_algorithm_observes_may_be_any_numbers(monkeypatch):
    monkeypatch.setattr(Observing, "log_metrics", lambda *_: NUMBERS)
    *_, last = simulate(replace(AVG, algorithm=Observing()))
    assert {n: last.metrics[n] for n in NUMBERS} == {n: np.mean(v) for n, v in NUMBERS.items()}


def test_what_a_run_logs_by_itself_is_no_name_for_an_algorithm():
    """The list lacked what audits and opting out add: a mean of two metrics was told as one."""
    clients = Dirichlet(clients=12, alpha=1.0, size=20)
    some = replace(TASK, partition=clients, opt_out=OptOut(clients=0.1), balanced=20)
    how = {"rounds": 1, "cohort": 10, "audit_labels": True, "select": "best"}
    logged = set[str]()
    for split in ("test", "validation"):
        asked = Experiment(replace(some, balanced_on=split), FedMix(experts=2), **how)
        logged = logged.union(*(moment.metrics for moment in simulate(asked)))
    stopping = replace(asked, select="last", evaluate_every=1, stop=CohortEarlyStop())
    logged = logged.union(*(moment.metrics for moment in simulate(stopping)))
    assert logged - {"q", "q_entropy", "q_marginal_entropy"} == LOGGED


@refused("observed")
def test_what_cannot_be_logged_is_refused(code, message, monkeypatch):
    monkeypatch.setattr(Observing, "log_metrics", lambda *_: eval(code))
    with pytest.raises((TypeError, ValueError), match=message):
        next(simulate(replace(AVG, algorithm=Observing())))


def test_who_trains_alone_and_is_never_drawn_is_told():
    once = Experiment(TASK, Local(batch_size=5), rounds=1, cohort=2)
    with pytest.warns(UserWarning, match="Local trains at most 2 of 6 clients: set cohort=1.0"):
        play(once)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(replace(once, cohort=Selection(1.0)))
        play(replace(once, algorithm=FedAvg(batch_size=5)))
