"""Nothing is concluded from a model that did not train."""

from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from companion.claims import FAILS, HOLDS, UNTESTED, UNTRAINED, judge
from companion.frames import by_seed
from companion.panels import Panel, stored
from companion.plotting import Title, over
from companion.trained import CONSTANT, FIRST, KEPT, sound, untrained, why_untrained
from fedlib import paths
from fedrun import Result
from papers.adaptive.claims import writer_claims
from papers.adaptive.experiments import ADAPTIVE_WRITERS
from papers.fedmix import claims as mix
from papers.fedmix.experiments import LABEL_SKEW, NEW_CLIENTS
from papers.scaled import FEDAVG, LOCAL, MAJORITY, TUNED
from papers.specialists.analysis import scores
from papers.specialists.claims import architecture_claims
from papers.specialists.experiments import ARCHITECTURES, MIXTURE, SPECIALISTS

RUNS = {r.method: r for r in SPECIALISTS.runs("standard", "cifar10") if r.where.get("p", 1) == 1}


def result(method, own=(0.1, 0.5), everywhere=(0.1, 0.4), kept=None):
    """A run of two evaluations: accuracy on own tests and on those of all classes."""
    one = RUNS[method].experiment
    ends, at = {"test_accuracy": own, "balanced_accuracy": everywhere}, (0, one.rounds)
    rows = [(t, m, 0, v) for m, two in ends.items() for t, v in zip(at, two, strict=True)]
    rows += [] if kept is None else [(one.rounds, "kept_round", -1, kept)]
    frame = pd.DataFrame(rows, columns=["round", "metric", "client", "value"])
    return Result(one, pa.Table.from_pandas(frame), {})


def test_a_run_that_is_no_better_than_none_is_untrained():
    for kept, why in ((None, ""), (100, ""), (0, KEPT)):
        assert why_untrained(result(FEDAVG, kept=kept)) == why
    assert why_untrained(result(FEDAVG, (0.5, 0.5), (0.1, 0.1))) == FIRST
    assert why_untrained(result(FEDAVG, (0.5, 0.4), (0.1, 0.2))) == ""
    # The majority class on own tests, and chance on ten classes.
    assert why_untrained(result(FEDAVG, (0.1, 0.504), (0.08, 0.104)), floor=0.5) == CONSTANT
    assert why_untrained(result(FEDAVG, (0.1, 0.506), (0.08, 0.104)), floor=0.5) == ""
    assert why_untrained(result(FEDAVG, (0.1, 0.504), (0.08, 0.106)), floor=0.5) == ""
    # A second stage begins with a trained model: it may well make it worse.
    assert why_untrained(result(TUNED, (0.5, 0.5), (0.4, 0.2))) == ""
    assert why_untrained(result(MAJORITY, (0.5, 0.5), (0.1, 0.1)), floor=0.5) == ""


def test_what_stands_on_an_untrained_run_is_untrained():
    for kept, gone in ((0, [FEDAVG, TUNED]), (100, [])):
        runs = [(RUNS[m], [result(m, kept=kept if m == FEDAVG else None)]) for m in (FEDAVG, TUNED)]
        found = untrained(runs)
        assert found["method"].tolist() == gone
        assert found.to_dict("list").get("p", []) == [1.0] * len(gone)


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
    rows = [(FEDAVG, s, 1.0, KEPT) for s in seeds]
    return pd.DataFrame(rows, columns=["method", "seed", "p", "why"])


def test_a_mean_over_places_is_over_the_same_places_in_every_seed():
    """By hand: 0.3 over both p, and 0.1 at the one at which both trained."""
    every = sound(claimed, table(), runs_at())
    assert [c.verdict for c in every] == [HOLDS, HOLDS, HOLDS, FAILS]
    assert every[0].effect == pytest.approx(30.2)
    pooled, there, mine, falls = sound(claimed, table(), runs_at(*range(5)))
    assert pooled.effect == pytest.approx(10.2) and pooled.seeds == 5
    left = "left out, as FedAvg did not train there: p = 1; all runs: +30.2 [+30.0, +30.4]"
    assert pooled.measured.endswith(left)
    assert there.verdict == falls.verdict == UNTRAINED and np.isnan(there.p)
    assert mine == every[2]  # no comparison with it
    for kept in sound(claimed, table(), runs_at(1, 3))[:2]:  # most seeds are whole
        left = "left out, as FedAvg did not train there: 2 of 5 seeds; all runs:"
        assert left in kept.measured and kept.verdict == HOLDS and kept.seeds == 3
        assert kept.effect == pytest.approx(30.2 if kept.text == "all p" else 50.2)
    pooled, there, *_ = sound(claimed, table(), runs_at(0, 1, 2))  # two seeds are whole
    assert pooled.effect == pytest.approx(10.2) and there.verdict == UNTRAINED


def test_seeds_are_left_out_only_where_they_are_asked_about():
    """One seed failed at p = 1: what is claimed of p = 0.2 alone keeps all five."""

    def mild(frame):
        at = {m: by_seed(rows) for m, rows in frame[frame["p"].lt(1)].groupby("method")}
        return [judge("p < 1", "", at[MIXTURE], at[FEDAVG]), claimed(frame)[0]]

    low, pooled = sound(mild, table(), runs_at(4))
    assert (low.seeds, pooled.seeds) == (5, 4)


JUDGED = {
    "divergence": (LABEL_SKEW, lambda p, f: mix.divergence_claims(f)),
    "specialisation": (LABEL_SKEW, lambda p, f: mix.specialisation_claims(f, p.setting.phi_rate)),
    "appendix F": (NEW_CLIENTS, lambda p, f: mix.new_client_claims(f, "appendix")),
    "joining": (NEW_CLIENTS, lambda p, f: mix.joining_claims(f, 10)),
    "architectures": (ARCHITECTURES, lambda p, f: architecture_claims(scores(f, p.setting.tested))),
    "writers": (ADAPTIVE_WRITERS, lambda p, f: writer_claims(f)),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_no_claim_rests_on_a_method_that_did_not_train(name, monkeypatch):
    """Every claim on stored runs: what hangs on the method is not judged, others are as they were.

    What hangs on it is found in another way: its numbers are changed, and some claims with them.
    """
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    section, judge = JUDGED[name]
    panel = next(iter(stored(section, [], "standard")))

    def judged(frame):
        return judge(panel, frame)

    before = judged(panel.frame)
    for method in panel.frame["method"].unique():
        mine = panel.frame["method"].eq(method)
        rows = panel.frame.loc[mine, ["method", "seed"]].drop_duplicates().assign(why=KEPT)
        noise = panel.frame["value"].where(~mine, panel.frame["value"] * 0.9 + 0.001)
        moved = [c.values for c in judged(panel.frame.assign(value=noise))]
        for was, values, now in zip(before, moved, sound(judged, panel.frame, rows), strict=True):
            if values != was.values:
                assert now.verdict in (UNTRAINED, UNTESTED), (method, was.text, now)
            elif now.verdict != UNTRAINED:
                assert repr(now) == repr(was)  # NaN equals itself in words


def test_what_has_no_such_place_is_drawn_though_others_did_not_train():
    """FedAvg did not train at q = 0.5 in one seed, Local, which has no q, in another one."""
    ends = [(FEDAVG, 0.0), (FEDAVG, 0.5), (TUNED, 0.5), (LOCAL, np.nan), (MAJORITY, np.nan)]
    rows = [(m, seed, 1.0, q, 0.5) for (m, q), seed in product(ends, range(3))]
    frame = pd.DataFrame(rows, columns=["method", "seed", "p", "q", "value"])
    gone = pd.DataFrame({"method": [FEDAVG], "seed": 1, "p": 1.0, "q": 0.5, "why": KEPT})

    def seeds(runs):
        even = Panel("cifar10", "standard", None, frame, trained=False, untrained=runs).even
        return even.groupby(["method", "q"], dropna=False)["seed"].agg(list).to_dict()

    left = seeds(gone)
    assert left[FEDAVG, 0.5] == left[TUNED, 0.5] == [0, 2] and left[FEDAVG, 0.0] == [0, 1, 2]
    assert {len(of) for (m, _), of in left.items() if m in (LOCAL, MAJORITY)} == {3}
    own = pd.DataFrame({"method": [LOCAL], "seed": 2, "p": 1.0, "q": np.nan, "why": KEPT})
    assert {m: of for (m, _), of in seeds(own).items()}[LOCAL] == [0, 1]


def test_runs_that_did_not_train_are_crossed_out():
    name = Title("CIFAR-10", untrained=runs_at(1, 3))
    figure, _ = over({name: table()}, x="p", xlabel="p", ylabel="accuracy")
    (cross,) = [c for c in figure.axes[0].lines if c.get_label() == "did not train"]
    assert cross.get_xydata().tolist() == [[1.0, 0.1]] * 2
