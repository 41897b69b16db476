"""Runs that did not train, kept their initial model, or were still training: all are told."""

from dataclasses import replace
from itertools import product

import pandas as pd
import pyarrow as pa
import pytest

from companion.claims import CONTRADICTED, HOLDS, UNTESTED, judge
from companion.frames import by_seed
from companion.panels import stored
from companion.plotting import Title, over
from companion.trained import INITIAL_NOTE, UNTRAINED_NOTE, facts, noted, survey
from fedlib import Result, paths
from papers.adaptive.claims import writer_claims
from papers.adaptive.experiments import ADAPTIVE_WRITERS
from papers.fedmix import claims as mix
from papers.fedmix.experiments import LABEL_SKEW, NEW_CLIENTS
from papers.scaled import FEDAVG, MAJORITY, TUNED
from papers.specialists.analysis import scores
from papers.specialists.claims import architecture_claims
from papers.specialists.experiments import ARCHITECTURES, MIXTURE, OPT_OUT, SPECIALISTS

RUNS = {r.method: r for r in SPECIALISTS.runs("standard", "cifar10") if r.where.get("p", 1) == 1}


def result(method, own=(0.1, 0.5), everywhere=(0.1, 0.4), kept=None):
    """A run of some evaluations: accuracy on own tests and on those of all classes."""
    one = RUNS[method].experiment
    courses = {"test_accuracy": own, "balanced_accuracy": everywhere}
    rows = [(t, m, 0, v) for m, course in courses.items() for t, v in enumerate(course)]
    rows += [] if kept is None else [(one.rounds, "kept_round", -1, kept)]
    frame = pd.DataFrame(rows, columns=["round", "metric", "client", "value"])
    return Result(one, pa.Table.from_pandas(frame), {})


def test_a_run_did_not_train_if_no_evaluation_is_better_than_the_first():
    assert facts(result(FEDAVG)).trained and facts(result(FEDAVG, kept=0)).trained
    assert not facts(result(FEDAVG, (0.5, 0.5), (0.1, 0.1))).trained
    assert not facts(result(FEDAVG, (0.5, 0.4), (0.1, 0.09), kept=100)).trained
    # On one of the two sets of examples it is better.
    assert facts(result(FEDAVG, (0.5, 0.4), (0.1, 0.101))).trained
    # It ends where it began, and was better in between.
    assert facts(result(FEDAVG, (0.1, 0.3, 0.1), (0.1, 0.1, 0.1))).trained
    # A second stage begins with a trained model: it may well make it worse.
    assert facts(result(TUNED, (0.5, 0.5), (0.4, 0.2))).trained
    assert facts(result(MAJORITY, (0.5, 0.5), (0.1, 0.1))).trained


def test_where_the_least_loss_is_the_initial_models_the_run_trained_all_the_same():
    """20 times the paper's rate: three times the accuracy, and a larger loss than log 10."""
    assert facts(result(FEDAVG)).keeps_trained and facts(result(FEDAVG, kept=100)).keeps_trained
    assert not facts(result(FEDAVG, kept=0)).keeps_trained
    assert facts(result(TUNED, kept=0)).keeps_trained  # the federation's model


def test_what_stands_on_an_untrained_run_is_untrained():
    worse = {"own": (0.5, 0.4), "everywhere": (0.1, 0.1)}
    for kept, how, of in ((0, {}, "initial"), (100, worse, "untrained")):
        made = {FEDAVG: result(FEDAVG, kept=kept, **how), TUNED: result(TUNED)}
        runs = [(RUNS[m], [one]) for m, one in made.items()]
        every = survey(runs)._asdict()
        found, others = every[of], every["untrained" if of == "initial" else "initial"]
        assert found["method"].tolist() == [FEDAVG, TUNED] and not len(others)
        assert found["p"].tolist() == [1.0] * 2


def test_how_much_an_accuracy_still_rises_is_of_the_last_two_quarters():
    """By hand: of rounds 0 to 8 the last quarter is 7 and 8, the one before 5 and 6."""
    flat, late = (0.5,) * 9, (0.0, 0.1, 0.9, 0.2, 0.3, 0.40, 0.42, 0.43, 0.45)
    runs = [result(FEDAVG, late), result(FEDAVG, flat), result(FEDAVG, late[::2])]
    assert survey([(RUNS[FEDAVG], runs[:1])]).rising == {FEDAVG: pytest.approx(0.03)}
    # Of rounds 0 to 4: .45 minus .42, and the mean over seeds.
    every = [replace(one, experiment=replace(one.experiment, seed=i)) for i, one in enumerate(runs)]
    assert survey([(RUNS[FEDAVG], every)]).rising == {FEDAVG: pytest.approx(0.02)}
    # What stands on a run that still rises is still training, even where its own curve falls.
    worse = result(TUNED, (0.6,) * 8 + (0.5,))
    both = survey([(RUNS[TUNED], [worse]), (RUNS[FEDAVG], runs[:1])]).rising
    assert both == {FEDAVG: pytest.approx(0.03), TUNED: pytest.approx(0.03)}
    runs = [(RUNS[TUNED], [result(TUNED, late)]), (RUNS[FEDAVG], [result(FEDAVG, flat)])]
    other = survey(runs).rising
    assert other == {FEDAVG: 0, TUNED: pytest.approx(0.03)}
    assert survey([(RUNS[TUNED], [worse])]).rising == {TUNED: pytest.approx(-0.05)}
    assert survey([(RUNS[FEDAVG], [result(FEDAVG, (0.1, 0.5))])]).rising == {}  # too short to tell


@pytest.mark.parametrize("section, scale", [(SPECIALISTS, "paper"), (OPT_OUT, "standard")])
def test_no_stored_run_of_cifar10_is_left_out(section, scale, monkeypatch):
    """By plain loops over what was logged: they all reach more than their initial accuracy."""
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    (panel,) = (p for p in stored(section, [], scale) if p.dataset == "cifar10")
    runs = panel.frame[panel.frame["metric"].eq("balanced_accuracy")]
    kept = panel.frame[panel.frame["metric"].eq("kept_round") & panel.frame["value"].eq(0)]
    for _, run in kept.iterrows():
        mine = runs["method"].eq(run["method"]) & runs["seed"].eq(run["seed"])
        for name in {"p", "q"} & {*runs.columns}:
            mine &= runs[name].eq(run[name])
        means = runs[mine].groupby("round")["value"].mean()
        assert means.iloc[1:].max() > means[0] + 0.05
    assert len(kept) and not len(panel.untrained)
    assert panel.initial["method"].eq(FEDAVG).sum() == len(kept)
    assert {*panel.initial["method"]} == {FEDAVG, TUNED, MIXTURE}


def table():
    """Accuracies of two methods: the second is 0.1 better at p = 0.2 and 0.5 at p = 1."""
    ends = [(FEDAVG, 0.2, 0.4), (FEDAVG, 1.0, 0.1), (MIXTURE, 0.2, 0.5), (MIXTURE, 1.0, 0.6)]
    cells = product(ends, range(5))
    rows = [(m, seed, p, at + 0.001 * seed * (m == MIXTURE)) for (m, p, at), seed in cells]
    return pd.DataFrame(rows, columns=["method", "seed", "p", "value"])


def claimed(frame):
    at = {(m, p): by_seed(rows) for (m, p), rows in frame.groupby(["method", "p"])}
    mean = {m: by_seed(rows) for m, rows in frame.groupby("method")}
    return [
        judge("all p", "", mean[MIXTURE], mean[FEDAVG]),
        judge("p = 1", "", at.get((MIXTURE, 1.0), {}), at.get((FEDAVG, 1.0), {})),
        judge("mixture", "", at.get((MIXTURE, 1.0), {}), at.get((MIXTURE, 0.2), {})),
        judge("falls", "", at.get((FEDAVG, 1.0), {}), at.get((FEDAVG, 0.2), {})),
    ]


def runs_at(*seeds):
    return pd.DataFrame([(FEDAVG, s, 1.0) for s in seeds], columns=["method", "seed", "p"])


def test_all_seeds_count_and_a_claim_tells_what_its_runs_are():
    """What does not hang on such runs says nothing of them."""
    every = noted(claimed, table(), {UNTRAINED_NOTE: runs_at(), INITIAL_NOTE: runs_at()})
    assert repr(every) == repr(claimed(table()))
    assert [c.verdict for c in every] == [HOLDS, HOLDS, HOLDS, CONTRADICTED]
    assert every[0].effect == pytest.approx(30.2) and {c.seeds for c in every} == {5}
    found = noted(
        claimed, table(), {UNTRAINED_NOTE: runs_at(*range(5)), INITIAL_NOTE: runs_at(1, 3)}
    )
    note = "; did not train in 5 of 5 seeds"
    note += "; the kept model is the initial one in 2 of 5 seeds, selected by NLL"
    for was, now in zip(every, found, strict=True):
        alone = was.text == "mixture"
        assert repr(now) == repr(replace(was, measured=was.measured + note * (not alone)))


def test_a_claim_whose_sides_are_the_same_initial_model_is_not_tested():
    frame = table().assign(value=0.5)
    (every,) = {c.verdict for c in noted(claimed, frame, {INITIAL_NOTE: runs_at()})}
    assert every == CONTRADICTED
    found = [c.verdict for c in noted(claimed, frame, {INITIAL_NOTE: runs_at(*range(5))})]
    # A mean over all p has other seeds in it.
    assert found == [CONTRADICTED, UNTESTED, CONTRADICTED, UNTESTED]


JUDGED = {
    "specialisation": (LABEL_SKEW, lambda p, f: mix.specialisation_claims(f, p.setting.phi_rate)),
    "appendix F": (NEW_CLIENTS, lambda p, f: mix.new_client_claims(f, "appendix")),
    "joining": (NEW_CLIENTS, lambda p, f: mix.joining_claims(f, 10)),
    "architectures": (ARCHITECTURES, lambda p, f: architecture_claims(scores(f, p.setting.tested))),
    "writers": (ADAPTIVE_WRITERS, lambda p, f: writer_claims(f)),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_every_stored_claim_about_a_method_that_did_not_train_says_so(name, monkeypatch):
    """What hangs on it is found in another way: its numbers are changed, and some claims with them.

    No number and no verdict is another one for it, unless both sides are the same model.
    """
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    section, judge = JUDGED[name]
    panel = next(iter(stored(section, [], "standard")))

    def judged(frame):
        return judge(panel, frame)

    before = judged(panel.frame)
    for method in panel.frame["method"].unique():
        mine = panel.frame["method"].eq(method)
        rows = panel.frame.loc[mine, ["method", "seed"]].drop_duplicates()
        noise = panel.frame["value"].where(~mine, panel.frame["value"] * 0.9 + 0.001)
        moved = [c.values for c in judged(panel.frame.assign(value=noise))]
        found = noted(judged, panel.frame, {UNTRAINED_NOTE: rows})
        for was, values, now in zip(before, moved, found, strict=True):
            told = now.measured.removeprefix(was.measured)
            assert told.startswith("; did not train in") or values == was.values, (method, was.text)
            same = was.low == was.high and told
            one = replace(now, measured=was.measured, verdict=UNTESTED if same else was.verdict)
            assert repr(one) == repr(
                replace(was, verdict=one.verdict)
            )  # NaN equals itself in words


def test_runs_that_did_not_train_or_kept_the_initial_model_are_marked():
    name = Title(
        "CIFAR-10", marked={"did not train": runs_at(1, 3), "from the initial model": runs_at(2)}
    )
    figure, _ = over({name: table()}, x="p", xlabel="p", ylabel="accuracy")
    found = {c.get_label(): c for c in figure.axes[0].lines}
    assert found["did not train"].get_xydata().tolist() == [[1.0, 0.1]] * 2
    assert found["from the initial model"].get_xydata().tolist() == [[1.0, 0.1]]
    assert found["did not train"].get_marker() != found["from the initial model"].get_marker()
