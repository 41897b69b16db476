"""What a curious server learns, on numbers small enough to check by hand (000, App. C)."""

from __future__ import annotations

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from companion import plotting
from companion.claims import FAILS, HOLDS, UNTESTED
from papers.claims import privacy
from papers.recipes import BIASED, EPOCH, FEDAVG, FEDMIX, PRIVACY, STEP, TRAINED, audited

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
LABELS = np.array([[0.8, 0.2], [0.2, 0.8]])  # two clients, two labels
BIAS, WEIGHTS, Q = "labels_from_bias", "labels_from_weights", "labels_from_q"
PHI, SET = "labels_from_phi", "label_set_from_phi"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def audit(method, stage, seed, off):
    """Return the rows of one audit; a source is ``off`` by so much at the first label."""
    shift = np.array([1, -1])
    found = {privacy.TRUTH: LABELS, **{m: LABELS + by * shift for m, by in off.items()}}
    return [
        (audited(method, stage), seed, 1, metric, client, -1, str(label), value)
        for metric, shares in found.items()
        for (client, label), value in np.ndenumerate(shares)
    ]


def frame(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=COLUMNS)


def every(**off):
    """Return three seeds of all methods and stages."""
    told = {FEDAVG: (BIAS, WEIGHTS), BIASED: (WEIGHTS,), FEDMIX: (BIAS, WEIGHTS, Q)}
    return frame(
        *(
            audit(m, stage, seed, {s: off.get(stage, 0.02) + (s == Q) * 0.2 for s in sources})
            for seed in range(3)
            for stage in (STEP, EPOCH, TRAINED)
            for m, sources in told.items()
        )
    )


def test_a_leak_is_the_total_variation_and_guessing_the_mean_of_all_clients():
    leaked = privacy.leaks(frame(audit(FEDAVG, STEP, 0, {BIAS: 0.05})))
    by_source = leaked.groupby("source")["value"].apply(list)
    assert by_source[privacy.BIAS] == pytest.approx([0.05, 0.05])
    assert by_source[privacy.GUESSING] == pytest.approx([0.3, 0.3])
    assert leaked["client"].tolist() == [0, 1, 0, 1]
    assert set(leaked["method"]) == {FEDAVG} and set(leaked["stage"]) == {STEP}


def test_a_frame_without_audits_has_no_leaks():
    assert privacy.leaks(frame()).empty
    assert {c.verdict for c in privacy.privacy_claims(frame())} == {UNTESTED}


def test_shares_and_one_client():
    rows = frame(audit(FEDMIX, EPOCH, 0, {BIAS: 0.05, Q: 0.1}))
    table = privacy.shares(rows, audited(FEDMIX, EPOCH), 0, privacy.TRUTH)
    assert table.to_numpy().tolist() == LABELS.tolist()
    found = privacy.of_client(rows, audited(FEDMIX, EPOCH), 0, 1)
    assert list(found) == ["true", privacy.BIAS, privacy.Q]
    assert found[privacy.Q] == pytest.approx([0.3, 0.7])
    assert privacy.of_client(rows, audited(FEDMIX, STEP), 0, 1) == {}


def test_spread_and_summary_are_in_the_order_of_sources_and_stages():
    leaked = privacy.leaks(every())
    ranges = privacy.spread(leaked)
    mix = ranges[ranges["method"] == FEDMIX]
    assert mix["row"].tolist() == [
        s for s in (privacy.BIAS, privacy.WEIGHTS, privacy.Q) for _ in "123"
    ]
    assert mix["group"].tolist() == [STEP, EPOCH, TRAINED] * 3
    table = privacy.summary(leaked)
    assert list(table.columns) == [STEP, EPOCH, TRAINED]
    assert (BIASED, privacy.BIAS) not in table.index
    assert table.loc[(FEDMIX, privacy.Q), STEP] == pytest.approx(0.22)
    assert table.loc[(FEDAVG, privacy.GUESSING), STEP] == pytest.approx(0.3)


def test_the_claims_follow_the_distances():
    good = privacy.privacy_claims(every(**{STEP: 0.01, EPOCH: 0.03, TRAINED: 0.1}))
    assert [c.verdict for c in good] == [HOLDS] * 12
    bad = privacy.privacy_claims(every(**{STEP: 0.4, EPOCH: 0.35, TRAINED: 0.2}))
    assert {c.verdict for c in bad[:4]} == {FAILS}
    assert bad[-1].text.startswith("q(z|s) reveals less") and bad[-1].verdict == FAILS


def with_phi(flip=0, off=0.01):
    """Return three seeds of FedMix's audits with phi; one label set is wrong if ``flip``."""
    rows = []
    for seed in range(3):
        for stage in (STEP, EPOCH, TRAINED):
            bias = 0.05 if stage == TRAINED else 0.0
            sources = {BIAS: bias, Q: 0.15, PHI: off, "labels_from_phi_cohort": off / 2}
            rows += audit(FEDMIX, stage, seed, sources)
            told = np.array([[1, 1], [1, 1 - flip]])
            rows += [
                (audited(FEDMIX, stage), seed, 1, SET, client, -1, str(label), float(value))
                for (client, label), value in np.ndenumerate(told)
            ]
    return frame(rows)


def test_claims_of_phi_are_ours_and_follow_the_label_sets():
    claims = [c for c in privacy.privacy_claims(with_phi()) if c.source == privacy.OURS]
    assert [c.verdict for c in claims] == [HOLDS] * 9
    wrong = [c for c in privacy.privacy_claims(with_phi(flip=1)) if "name every" in c.text]
    assert [c.verdict for c in wrong] == [FAILS] * 3
    assert all(c.measured == "3 (asked: 0)" for c in wrong)
    loose = [c for c in privacy.privacy_claims(with_phi(off=0.2)) if "more than q" in c.text]
    assert [c.verdict for c in loose] == [FAILS] * 3


def test_runs_that_were_audited_before_phi_make_no_claim_of_it():
    assert not [c for c in privacy.privacy_claims(every()) if c.source == privacy.OURS]
    truth, told = privacy.label_sets(every(), STEP)
    assert truth.size == told.size == 0


def test_label_sets_and_how_many_are_wrong():
    rows = with_phi(flip=1)
    truth, told = privacy.label_sets(rows, EPOCH, seed=1)
    assert truth.tolist() == LABELS.tolist() and told.tolist() == [[True, True], [True, False]]
    assert privacy.wrong_sets(rows, EPOCH) == (3, 6)


def test_drawn_label_sets_say_what_is_wrong():
    truth = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
    read = np.array([[True, True, True], [False, True, False]])
    panels = {"one": (truth, truth > 0), "two": (truth, read)}
    figure, drawn = plotting.label_sets(panels, ["a", "b", "c"])
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["one: 2 of 2 label sets are right", "two: 0 of 2 label sets are right"]
    marks = {line.get_label(): len(line.get_xdata()) for line in figure.axes[1].lines}
    assert list(marks.values()) == [3, 1, 1]
    two = drawn[drawn["panel"] == "two"]
    assert two["read"].tolist() == read.ravel().tolist()
    assert two["true"].tolist() == truth.ravel().tolist()


def test_a_bias_that_is_sent_is_noticed():
    rows = frame(*(audit(BIASED, STEP, s, {BIAS: 0.0, WEIGHTS: 0.1}) for s in range(3)))
    claim = next(c for c in privacy.privacy_claims(rows) if "sends no bias" in c.text)
    assert claim.verdict == FAILS and "6 (asked: 0)" in claim.measured


def test_exactness_is_to_six_decimals():
    assert privacy.exactness_claim(4e-7).verdict == HOLDS
    assert privacy.exactness_claim(6e-7).verdict == FAILS


@pytest.mark.parametrize("scale", ["quick", "standard", "paper"])
def test_the_claims_know_the_section(scale):
    dataset = next(iter(PRIVACY.settings(scale)))
    known = {audited(m, s) for m in privacy.METHODS for s in privacy.STAGES}
    assert known == set(PRIVACY.methods(scale, dataset))


def test_bars_return_both_shares_of_every_client():
    _, drawn = plotting.label_bars(LABELS, LABELS + 0.1, clients=[7, 9])
    assert drawn["client"].tolist() == [7, 7, 9, 9]
    assert drawn["true"].tolist() == LABELS.ravel().tolist()
    assert (drawn["reconstructed"] - drawn["true"]).to_numpy() == pytest.approx(0.1)


def test_dots_write_what_is_missing_and_stop_where_an_accuracy_ends():
    one = pd.DataFrame(
        [("a", "g", 0.5, -0.1, 1.1)], columns=["row", "group", "mean", "low", "high"]
    )
    two = pd.concat([one, one.assign(row="b")])
    figure, drawn = plotting.dots({"x": one, "y": two}, xlabel="", empty="not sent", most=1.0)
    assert [t.get_text() for t in figure.axes[0].texts] == ["not sent"]
    ends = figure.axes[0].collections[0].get_segments()[0][:, 0]
    assert ends.tolist() == pytest.approx([0.0, 1.0])
    assert drawn["panel"].tolist() == ["x", "y", "y"]


def test_labels_of_dots_have_room():
    rows = [("a", "g", 0.0, -0.2, 0.12), ("b", "g", 0.01, 0.0, 0.02)]
    frame = pd.DataFrame(rows, columns=["row", "group", "mean", "low", "high"])
    figure, _ = plotting.dots({"x": frame, "y": frame}, xlabel="")
    figure.set_layout_engine("tight")
    figure.canvas.draw()
    for ax in figure.axes:
        shown = [t.get_window_extent() for t in ax.get_xticklabels() if t.get_text()]
        apart = [b.x0 - a.x1 for a, b in pairwise(shown)]
        assert len(apart) >= 2 and min(apart) > 0.5 * shown[0].height


def test_grouped_bars_return_every_value():
    groups = {"true": LABELS[0], "output bias": LABELS[1]}
    figure, drawn = plotting.grouped(groups, ["cat", "dog"], ylabel="share")
    assert drawn["value"].tolist() == [0.8, 0.2, 0.2, 0.8]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["cat", "dog"]
