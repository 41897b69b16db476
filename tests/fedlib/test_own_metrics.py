"""Metrics of one's own, the majority-class baseline, and what ``compare`` tells of clients."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from fedlib import (
    AUC,
    F1,
    IID,
    MLP,
    BalancedAccuracy,
    FedAvg,
    FedMix,
    LocalHoldout,
    MajorityClass,
    Metric,
    NaturalPartition,
    Task,
    data,
    sgd,
    value,
)
from fedrun import Experiment, compare, frame, majority_accuracy, predict, run, tiny


@value
class Certainty(Metric):
    """The mean probability of the predicted class."""

    def __call__(self, labels, probabilities, side):
        assert side == {} and probabilities.shape == (len(labels), 10)
        return probabilities.max(1).mean()


MEASURED = replace(tiny, metrics=(BalancedAccuracy(), F1(), AUC(), Certainty()))
QUICK = {"progress": False}


def test_metrics_are_those_of_each_clients_own_predictions(places):
    result = run(MEASURED, **QUICK)
    fed = MEASURED.task.build(0)
    for client in range(fed.num_clients):
        own = fed.test.client(client)
        y, p = fed.test.y[own].numpy(), predict(result, fed.test.x[own].numpy(), client=client)
        there = np.unique(y)
        expected = {
            "test_balanced_accuracy": balanced_accuracy_score(y, p.argmax(1)),
            "test_f1": f1_score(y, p.argmax(1), labels=there, average="macro", zero_division=0),
            "test_auc": np.mean([roc_auc_score(y == c, p[:, c]) for c in there]),
            "test_certainty": p.max(1).mean(),
        }
        for name, wanted in expected.items():
            assert result.per_client(name)[client] == pytest.approx(wanted, rel=1e-4), name
    assert {"validation_f1", "validation_certainty"} <= {*result.logged}


def test_metrics_add_to_a_run_and_change_nothing_of_it(places):
    plain, more = (run(one, **QUICK) for one in (tiny, MEASURED))
    assert plain.experiment.key == tiny.key != MEASURED.key
    for name in plain.logged:
        assert plain.curve(name) == more.curve(name)


@pytest.mark.parametrize("balanced", ["test", "validation"])
def test_the_baseline_of_every_accuracy_is_what_the_majority_class_is_run_with(places, balanced):
    task = replace(tiny.task, balanced=30, balanced_on=balanced)
    floor = run(Experiment(task, MajorityClass(), rounds=1, cohort=6), **QUICK)
    table = frame({"floor": [floor]})
    accuracies = table[table["metric"].str.endswith("_accuracy")]
    assert accuracies["value"].to_numpy() == pytest.approx(accuracies["majority"].to_numpy())
    assert set(accuracies["metric"]) > {"global_accuracy", "everywhere_accuracy"}
    assert table.drop(accuracies.index)["majority"].isna().all()
    for split in ("validation", "test"):
        wanted = floor.final(f"{split}_accuracy")
        assert majority_accuracy(floor.experiment, split) == pytest.approx(wanted)


def test_the_baseline_is_that_of_the_data_that_are_there_now(places):
    """A baseline that is remembered by its experiment would be that of data that were replaced."""
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    owner = {"ward": np.arange(60) % 2}
    split, found = LocalHoldout(test=0.5, validation=0), []
    for y in (np.zeros(60, dtype=int), np.arange(60) // 2 % 2):
        data.add_data("stays", (x, np.append(y[:-1], 1), owner))
        task = Task("stays", NaturalPartition("ward"), MLP((4,)), split)
        one = Experiment(task, FedAvg(batch_size=8), rounds=5, cohort=2)
        found.append(majority_accuracy(one))
    assert found[0] > 0.9 > found[1]
    stored = run(one, **QUICK)  # without validation examples nothing is compared with the baseline
    assert compare({"mine": [stored]})[0].majority == pytest.approx(found[1])
    data.add_data("stays", (x, 1 - y, owner))
    assert np.isnan(compare({"mine": [stored]})[0].majority)
    assert frame({"mine": [stored]})["majority"].isna().all()


def test_compare_tells_of_clients_and_of_the_baseline(places):
    runs = [run(replace(tiny, seed=seed), **QUICK) for seed in range(2)]
    (row,) = found = compare({"mine": runs})
    each = np.array([[*one.per_client("test_accuracy").values()] for one in runs])
    assert row.worst == pytest.approx(each.min(1).mean())
    assert row.tenth == pytest.approx(np.quantile(each, 0.1, axis=1).mean())
    assert row.spread == pytest.approx(each.std(1).mean())
    floors = [majority_accuracy(one.experiment) for one in runs]
    assert row.majority == pytest.approx(np.mean(floors))
    assert "worst client" in str(found) and "majority class" in found._repr_html_()
    axis = found.plot()
    assert axis.get_xlabel() == "test_accuracy" and len(axis.lines) >= 3
    plt.figure()
    axis = compare({"a long name " * 4: runs}).plot()
    axis.figure.canvas.draw()
    assert axis.get_yticklabels()[0].get_window_extent().x0 >= 0, "long names are not cut off"
    axis = compare({"mine": runs, "first": runs[:1]}).plot(plt.figure().gca())
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert len(axis.lines) > len(texts) == len({*texts}), "baselines of other seeds, one entry"
    (of_server,) = compare({"mine": runs}, "global_accuracy")
    assert np.isnan(of_server.worst) and 0 < of_server.majority < 0.2


def test_compare_warns_of_other_data_and_rounds_and_tells_of_seeds_that_differ(places):
    one, other = run(tiny, **QUICK), run(replace(tiny, seed=1), **QUICK)
    rows = compare({"mine": [one], "other": [other]}).to_frame()
    assert [*rows["its 95% CI"]] == ["", "no common seeds"]
    more = replace(tiny, rounds=tiny.rounds + 1)
    with pytest.warns(UserWarning, match="the compared runs have different rounds"):
        compare({"mine": [one], "long": [run(more, **QUICK)]})
    apart = replace(tiny, task=replace(tiny.task, partition=IID(clients=3, size=20)))
    with pytest.warns(UserWarning, match="the compared runs have different data: .*IID"):
        compare({"mine": [one], "apart": [run(apart, **QUICK)]})


def test_the_worst_client_of_a_loss_is_that_with_the_highest(places):
    one = run(tiny, **QUICK)
    (row,) = found = compare({"mine": [one]}, "test_nll", None)
    each = [*one.per_client("test_nll").values()]
    assert row.worst == max(each) and row.tenth == np.quantile(each, 0.9)
    assert "90th percentile" in str(found) and "10th" not in str(found)


def test_compare_bounds_the_intervals_of_what_lies_between_0_and_1_and_of_no_loss(places):
    runs = {"mine": [run(replace(tiny, seed=seed), **QUICK) for seed in range(3)]}
    for metric, limits in (("test_accuracy", (0, 1)), ("test_nll", None), ("bytes_up", None)):
        (row,), (wanted,) = compare(runs, metric), compare(runs, metric, limits)
        assert str(row) == str(wanted), "the same, also where an end is NaN"
    (alone,) = compare({"mine": runs["mine"][:1]}, "test_nll")
    assert alone.mean > 1 and np.isnan(alone.low)


@value
class Accuracy(Metric):
    """A metric with the name of one that every run logs, with which it would be averaged."""

    def __call__(self, labels, probabilities, side):
        return 0.0


def test_a_metric_must_not_have_the_name_of_one_that_every_run_logs(places):
    with pytest.raises(ValueError, match=r"none of \('accuracy', .*, got \['accuracy'\]"):
        replace(tiny, metrics=(Accuracy(),))


@value
class Short(Metric):
    def __call__(self, labels, probabilities):
        return 1.0


@value
class InWords(Metric):
    def __call__(self, labels, probabilities, side):
        return "high"


@pytest.mark.parametrize("wrong", [Short(), InWords()])
def test_a_metric_that_cannot_be_computed_is_named_with_what_it_is_given(places, wrong):
    with pytest.raises((TypeError, ValueError)) as caught:
        run(replace(tiny, metrics=(wrong,)), **QUICK)
    (note,) = caught.value.__notes__
    assert note.startswith(f"in {type(wrong).__name__}.__call__(self, labels, probabilities, side)")
    assert note.endswith("which must return a number")


def test_compare_has_no_interval_of_two_seeds_or_of_equal_values(places):
    runs = [run(replace(tiny, seed=seed), **QUICK) for seed in range(3)]
    first, same, two = found = compare({"mine": runs, "again": runs, "fewer": runs[:2]})
    assert first.low < first.mean < first.high and (first.pairs, two.pairs) == (0, 2)
    assert (same.ahead, two.ahead) == (0, 0)
    assert np.isnan([first.ahead_low, same.ahead_low, same.ahead_high, two.low]).all()
    table = found.to_frame()
    assert [*table["its 95% CI"]] == ["", "equal seeds", "two seeds"]
    assert [*compare({"mine": runs[:1]}).to_frame()["95% CI"]] == ["one seed"]


def test_a_run_that_is_no_better_than_the_majority_class_warns_once_at_its_end(places, monkeypatch):
    monkeypatch.delenv("FEDLIB_QUIET", raising=False)
    slow = Experiment(tiny.task, FedMix(experts=2, server=sgd(1e-6)), rounds=5, cohort=6)
    with pytest.warns(UserWarning, match="FedMix is no better than the majority-class") as w:
        run(slow, **QUICK)
    assert len(w) == 1
    good = replace(slow, algorithm=FedAvg(batch_size=8, epochs=5, client=sgd(0.2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(good, **QUICK)
        run(slow, **QUICK)  # it is stored, and was told
        run(replace(slow, rounds=2), **QUICK)
        monkeypatch.setenv("FEDLIB_QUIET", "1")
        run(replace(slow, seed=1), **QUICK)


def test_clients_with_a_single_training_example_warn_once(places, monkeypatch):
    monkeypatch.delenv("FEDLIB_QUIET", raising=False)
    task = replace(tiny.task, partition=IID(clients=3, size=1))
    one = Experiment(task, FedAvg(), rounds=2, cohort=2)
    with pytest.warns(UserWarning, match="3 of 3 clients have a single training example") as w:
        first = run(one, **QUICK)
    assert len(w) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert run(one, **QUICK).metrics == first.metrics  # it is stored, and warned
