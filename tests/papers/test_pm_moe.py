"""004: its settings, what it publishes, and its claims on runs whose verdicts are known."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from rows import frame_of

from companion.claims import CONTRADICTED, HOLDS, UNTESTED
from fedlib import MLP
from fedrun import run_with_state
from papers.pm_moe import DENOISED, NINE, STAGE, SYNCHRONOUS, TRADITIONAL, WITH_MOE, analysis
from papers.pm_moe import claims as judging
from papers.pm_moe.analysis import PARTS, called, gains, made_of, printed, ranks, scores, varied
from papers.pm_moe.claims import fourteen_claims, gate_claims, lost, mixture_claims, revealed_claims
from papers.pm_moe.experiments import FOURTEEN, GATES, PRIVATE_PARTS, TASKS, fourteen
from papers.scaled import FEDAVG, MAJORITY

SIZES = (10, 30)
SETTING = GATES.settings("quick")["digits"]
OTHERS = {(part, choice) for part, choices in PARTS.items() for choice in choices[1:]}


def run(method, seed, *accuracies, s=0.0, stage=""):
    """The rows of a run of two clients whose last accuracies are given."""
    here = {"method": method, STAGE: stage, "seed": seed, "S": s}
    rows = []
    for client, (last, size) in enumerate(zip(accuracies, SIZES, strict=True)):
        mine = {**here, "client": client}
        rows.append({**mine, "metric": "examples", "value": size})
        for metric in ("test_accuracy", "validation_accuracy"):
            rows += [{**mine, "metric": metric, "round": t, "value": last * t} for t in (0, 1)]
    return rows


def table_1(helps):
    """Sharing adds ``helps`` / 10 to methods that share all, and takes as much from the nine."""
    rows = []
    for seed, s, (i, m) in product(range(3), (0.0, 20.0), enumerate((*TRADITIONAL, *NINE))):
        shared = helps * (0.1 if s else 0.0) * (-1 if m in NINE else 1)
        value = 0.5 + 0.2 * (m in NINE) + shared + 0.01 * i + 0.001 * seed
        rows += run(m, seed, value, value, s=s)
    return scores(frame_of(*rows))


def mixtures(gain, cleaned=0.02):
    """All nine at S = 0, with PM-MoE ``gain`` better, and denoised ``cleaned`` better than that."""
    rows = []
    for seed in range(3):
        base, steps = 0.6 + 0.01 * seed, ((WITH_MOE, gain), (DENOISED, gain + cleaned))
        rows += run(SYNCHRONOUS, seed, 0.5, 0.5)
        for m in NINE:
            rows += run(m, seed, base, base)
            for stage, more in steps:
                rows += run(m, seed, base + more + 0.001 * seed, base + more, stage=stage)
    return frame_of(*rows)


def test_a_lead_over_the_baseline_depends_on_how_clients_are_weighted():
    """By hand: +0.4 at the client with 10 examples, -0.2 at that with 30."""
    rows = [r for s in range(3) for r in (*run(FEDAVG, s, 0.9, 0.4), *run(MAJORITY, s, 0.5, 0.6))]
    told = analysis.by_size(frame_of(*rows), FEDAVG).loc[0.0].dropna()
    assert told.str.split().str[0].to_dict() == {
        "all clients": "0.100", "weighted by size": "-0.050", "second": "0.400",
        "largest quarter": "-0.200",
    }  # fmt: skip


def test_a_second_stage_is_a_column_until_it_is_read():
    """The same method with and without it: what runs are told apart by is data."""
    alone, second, *_ = PRIVATE_PARTS.runs("quick", "digits", ["FedPer"])
    assert second.where == {"S": 0.0, STAGE: WITH_MOE}
    assert second.experiment.first_stage == alone.experiment
    table = pd.DataFrame({"method": ["FedPer", "DBE"], STAGE: ["", DENOISED], "value": [1, 2]})
    assert called(table)["method"].tolist() == ["FedPer", f"DBE {DENOISED}"]
    assert called(called(table)).equals(called(table)) and STAGE not in called(table)


@pytest.mark.parametrize("dataset", analysis.PRINTED)
def test_every_published_number_is_found_with_its_stage(dataset):
    first, second, third, fourth = (printed(f"Table {i}", dataset) for i in range(1, 5))
    for s in (0.0, 20.0):
        assert {*TRADITIONAL, *NINE} <= {*first[first["S"] == s]["method"]}
        mixed = second[second["S"].eq(s) & second[STAGE].eq(DENOISED)]
        assert {*NINE} == {*mixed["method"]}
    assert first["value"].dropna().between(0, 1).all() and first[STAGE].eq("").all()
    if len(third):
        best = "LG-FedAvg" if dataset == "ag_news" else "FedCP"
        assert {*third["method"]} == {best} and {*third[STAGE]} == {"", WITH_MOE, DENOISED}
    assert {*fourth["method"]} <= {"PM-MOE", SYNCHRONOUS}
    assert printed("Table 1", "digits").empty


@pytest.mark.parametrize(("helps", "said"), [(1, [HOLDS, HOLDS]), (-1, [HOLDS, CONTRADICTED])])
def test_the_claims_about_sharing_follow_the_runs(helps, said):
    """The published order is asked for where it is known, and sharing where two ratios were run."""
    table = table_1(helps)
    for dataset, orders in (("digits", 0), ("cifar10", 2)):
        told = fourteen_claims(table, printed("Table 1", dataset))
        assert [c.verdict for c in told][:2] == said and len(told) == 2 + orders
        assert all(c.seeds == 3 for c in told)
    (alone,) = fourteen_claims(table[table["S"].eq(0)], printed("Table 1", "digits"))
    assert alone.verdict == HOLDS and "nothing is shared" in alone.text


def audit(seed, moved, asked):
    """An audit of two clients' parts, three labels: the first holds 0 and 1, the second label 1."""
    here = {"method": "FedPer", "seed": seed, "S": 0.0, "round": 1}
    tables = {"held_labels": [[1, 1, 0], [0, 1, 0]], "labels_from_parts": moved}
    rows = [
        {**here, "metric": metric, "item": str(client), "expert": label, "value": value}
        for metric, table in tables.items()
        for client, row in enumerate(table)
        for label, value in enumerate(row)
    ]
    asked = [{"item": str(i), "expert": 0, "value": v} for i, v in enumerate(asked)]
    return rows + [{**here, "metric": "asked_labels", **row} for row in asked]


def test_what_parts_reveal_by_hand():
    """Of six pairs five are inferred correctly: label 0 of the first client is missed.

    "All labels" is right about three, and what most clients hold, label 1, about five.
    """
    moved = [[-1.0, 3.0, -2.0], [-1.0, 2.0, -1.0]]
    told = analysis.revealed(frame_of(*audit(0, moved, [1.0, 0.5])))
    assert told.set_index("source")["value"].to_dict() == pytest.approx(
        {
            "the parameters of a private part": 5 / 6,
            "the predictions of a private part": 0.75,
            "all labels": 3 / 6,
            "the labels of most clients": 5 / 6,
        }
    )
    best, drawn = analysis.best_constant(told), analysis.guessed(told)
    assert best["value"].tolist() == pytest.approx([5 / 6])
    means = dict(zip(drawn["group"], drawn["mean"], strict=True))
    assert means == pytest.approx({analysis.ASKED: 0.75, analysis.READ: 5 / 6})
    assert analysis.label_sets(np.array([[2.0, 1.0, 0.0, 1.0]])).tolist() == [
        [True, False, False, False]
    ]


def test_a_part_that_tells_more_than_a_constant_guess_hides_nothing():
    all_right = [[1.0, 1.0, -2.0], [-1.0, 2.0, -1.0]]
    rows = [row for seed in range(3) for row in audit(seed, all_right, [0.4, 0.6])]
    read, asked = revealed_claims(frame_of(*rows))
    assert (read.verdict, asked.verdict) == (CONTRADICTED, HOLDS) and "FedPer" in read.text
    assert read.effect == pytest.approx(100 / 6) and read.seeds == 3


def compared(seed, alike):
    """An audit of three clients' bases: the first two hold similar labels, the third others."""
    here = {"method": "LG-FedAvg", "seed": seed, "S": 0.0, "round": 1}
    far = [[3.0 * abs(i // 4 - j // 4) + 0.1 * abs(i - j) for j in range(8)] for i in range(8)]
    tables = {
        "feature_similarity": alike,
        "label_overlap": [[1, 0.7, 0], [0.7, 1, 0.1], [0, 0.1, 1]],
        "example_label": [[i // 4] for i in range(8)],
        **{f"distance_{name}": far for name in ("own", "borrowed", "central")},
    }
    return [
        {**here, "metric": metric, "item": str(i), "expert": j, "value": value}
        for metric, table in tables.items()
        for i, row in enumerate(table)
        for j, value in enumerate(row)
    ]


def test_features_of_the_client_with_the_most_similar_labels_by_hand():
    """Nearest are 1, 0 and 1: (0.6 + 0.5 + 0.1) / 3. Own: (0.9 + 0.8 + 0.7) / 3."""
    alike = [[0.9, 0.6, 0.2], [0.5, 0.8, 0.3], [0.4, 0.1, 0.7]]
    told = analysis.similarities(frame_of(*compared(0, alike))).set_index("source")["value"]
    assert told.to_dict() == pytest.approx(
        {analysis.OWN: 0.8, analysis.NEAREST: 0.4, analysis.OTHERS: 0.35}
    )


@pytest.mark.parametrize(("own", "verdict"), [(0.9, CONTRADICTED), (0.1, HOLDS)])
def test_the_claim_about_features_follows_the_runs(own, verdict):
    alike = np.full((3, 3), 0.5) + (own - 0.5) * np.eye(3)
    rows = [row for s in range(3) for row in compared(s, (alike + 0.001 * s * np.eye(3)).tolist())]
    (claim,) = judging.feature_claims(frame_of(*rows))
    assert (claim.verdict, claim.unit) == (verdict, "")
    assert claim.effect == pytest.approx(0.5 - own - 0.001)


def test_groups_that_are_far_apart_are_so_in_a_plane():
    alike = np.eye(3).tolist()
    found = analysis.embedded(frame_of(*compared(1, alike), *compared(2, alike)))
    assert [*found] == [*analysis.FEATURES_OF]
    for places in found.values():
        one, other = (
            places.loc[places["label"] == label, ["x", "y"]].to_numpy() for label in (0, 1)
        )
        within = max(np.ptp(one, 0).max(), np.ptp(other, 0).max())
        assert len(places) == 8 and np.linalg.norm(one.mean(0) - other.mean(0)) > within


def test_clients_are_converted_one_by_one():
    for *gained, order, course in (
        ((0.5, 0.5, 0.5), (0.9, 0.1, 0.4), (1.0, 2, 1), (0, 2, 1), (0.5, 0.6, 0.575, 0.375)),
        ((0.3, 0.8), (0.3, 0.8), (1.0, 1), (1, 0), (0.55,) * 3),  # nothing is gained
    ):
        found = analysis.prefixes(*map(np.array, gained), np.array(order))
        np.testing.assert_allclose(found, course)


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, HOLDS), (-0.05, CONTRADICTED)])
def test_the_claims_about_mixtures_follow_the_runs(gain, verdict):
    found = {c.name: c for c in mixture_claims(mixtures(gain))}
    follow = {found.pop(name).verdict for name in ("improves", "all", "moe", "dbe", "best")}
    assert follow == {verdict}
    assert found.pop("own").verdict == UNTESTED  # gates were not logged
    # If every client gains, the largest evaluation is that of all of them.
    assert (found.pop("largest").verdict == HOLDS) == (gain < 0)
    assert {n: c.verdict for n, c in found.items()} == dict.fromkeys(
        ("denoised", "synchronous"), HOLDS
    )
    ways = analysis.told_gains(mixtures(gain), "cifar10")
    assert {way: rows["value"].mean() > 0 for way, rows in ways.items()} == {
        analysis.ALL: gain > 0, analysis.LARGEST: gain > 0, analysis.CHOSEN: gain > 0,
        "published": True,
    }  # fmt: skip
    points = analysis.mean_gains(ways).loc[0.0, [analysis.ALL, analysis.LARGEST]]
    assert tuple(points.abs().round() > 0) == (True, gain > 0)
    first = analysis.beside_published(ways[analysis.ALL], ways["published"])["S = 0"].iloc[0]
    assert first["row"] == "mean of nine" and first["mean"] == pytest.approx(
        points[analysis.ALL], abs=0.01
    )
    by_s = analysis.beside_published(ways[analysis.ALL], ways["published"])
    ours, theirs = analysis.overview({"C": by_s}).to_dict("records")[:2]
    assert (ours["row"], ours["mean"]) == ("C, S = 0", first["mean"])
    assert len(ours["values"]) == len(NINE) and not len(theirs["values"])
    told, own = analysis.reporting(mixtures(gain)), 0.001 * SIZES[0] / sum(SIZES)
    np.testing.assert_allclose(told["all"], gain + 0.02 + told["seed"] * own)
    np.testing.assert_allclose(told["maximum"], np.maximum(told["all"], 0))
    table = scores(mixtures(gain))
    (row,) = table.query("method == 'FedPer' and seed == 2 and stage == @WITH_MOE")["value"]
    assert row == pytest.approx(0.62 + gain + 2 * own)  # clients count by their examples
    added = gains(table.iloc[::-1])
    assert tuple(added["method"].unique()) == NINE and len(added) == 27
    np.testing.assert_allclose(gains(table, DENOISED, WITH_MOE)["value"], 0.02)


def test_a_method_loses_if_two_printed_decimals_show_it():
    """Of four cells of two seeds one loses a point, and one less than what is printed."""
    gained = {"seed": [0, 0, 1, 1], "value": [-0.01, 0.02, -0.00004, 0.0]}
    assert lost(pd.DataFrame(gained)) == {0: 0.5, 1: 0.0}


def test_the_own_weight_is_over_that_of_an_even_gate():
    """By hand: two clients weigh their own of two parts .8 and .6, 1.4 times an even gate's."""
    here = {"method": "FedPer", STAGE: WITH_MOE, "S": 0.0, "metric": "gate_share"}
    rows = [
        {**here, "item": str(client), "expert": k, "value": share}
        for client, shares in enumerate(((0.8, 0.2), (0.4, 0.6)))
        for k, share in enumerate(shares)
    ]
    assert analysis.own_weight(frame_of(*rows)) == {0: pytest.approx(1.4)}


def test_a_bad_last_round_is_no_gain_over_the_round_that_validation_chooses():
    """FedGH has 0.9, then 0.7 at its end; the mixture's 0.8 is above the latter only."""
    first = run("FedGH", 0, 0.9, 0.9)
    fell = [{**row, "round": 2, "value": 0.7} for row in first if row.get("round") == 1]
    frame = frame_of(*first, *fell, *run("FedGH", 0, 0.8, 0.8, stage=DENOISED))
    assert gains(scores(frame))["value"].tolist() == pytest.approx([0.1])
    (row,) = analysis.gains_over_chosen(frame).to_dict("records")
    assert (row["before"], row["after"], row["value"]) == pytest.approx((0.9, 0.8, -0.1))


def test_gate_weights_are_means_over_labels_before_and_after_training():
    gates = [
        {"method": SYNCHRONOUS, STAGE: "", "S": 0.0, "metric": "test_gate", "round": t}
        | {"expert": k, "item": str(y), "value": 1 - w if k == 0 else w}
        for t, own in ((1, (0.2, 0.4)), (0, (0.7, 0.8)))
        for y, w in enumerate(own)
        for k in (0, 1)
    ]
    table = frame_of(*gates, *run(SYNCHRONOUS, 0, 0.8, 0.4), *run("FedPer", 0, 0.1, 0.1))
    (found,) = analysis.local_gate_weights(table).reset_index().to_dict("records")
    expected = {"S": 0, "seed": 0, "before": 0.75, "after": 0.3, "accuracy": 0.5}
    assert found == pytest.approx(expected)


def test_tables_say_what_is_published():
    table = scores(mixtures(0.05))
    text = analysis.tabled(table, printed("Table 2", "cifar10"))["S = 0"]
    for name, mean in (("FedPer", "0.610"), (f"FedPer {DENOISED}", "0.680")):
        assert text[name].startswith(f"{mean} ± ") and "(3) [" in text[name]
    assert not text[SYNCHRONOUS].endswith("]")
    steps = analysis.ablation(table.query("seed < 2 and method == 'FedPer' and stage != @DENOISED"))
    assert list(steps.index) == ["FedPer"] and list(steps) == ["alone", "PM-MoE", "denoised"]
    assert steps.loc["FedPer"].tolist() == ["0.605 (2)", "0.655 (2)", ""]


def test_the_best_of_nine_is_chosen_on_tests():
    table = scores(mixtures(0.05))
    table.loc[table["method"].eq("DBE") & table[STAGE].eq(DENOISED), "value"] = 0.9
    best = analysis.best_of_nine(table)
    assert best["value"].tolist() == [0.9] * 3 and set(best["method"]) == {analysis.BEST}
    assert analysis.best_printed("cifar10")["value"].tolist() == pytest.approx([0.9395, 0.8221])


def test_a_method_may_train_at_a_rate_of_its_own():
    setting = FOURTEEN.settings("standard", "cifar10")["cifar10"]
    made = fourteen(replace(setting, rate=0.5, rates=(("SCAFFOLD", 0.125),)))
    assert {m: a.client.lr for m, a in made.items() if a.client.lr != 0.5} == {"SCAFFOLD": 0.125}
    assert made == fourteen(replace(setting, rate=0.5, rates=())) | {"SCAFFOLD": made["SCAFFOLD"]}
    assert TRADITIONAL[0] == FEDAVG and {*made} == {*TRADITIONAL, *NINE}


def test_the_standard_scale_thins_the_papers_partition_and_the_quick_one_has_digits():
    """A portion of the data would be dealt to another federation, with other tests."""
    small, paper = (FOURTEEN.settings(scale) for scale in ("standard", "paper"))
    for dataset, setting in small.items():
        mine, whole = setting.task, paper[dataset].task
        assert (mine.partition, mine.portion) == (whole.partition, whole.portion)
        assert replace(mine.held_out, train=1.0) == whole.held_out
        # A sample is thin already.
        assert (mine.held_out.train < 1) != mine.dataset.endswith("_sample")
    quick = {name[4:]: task("quick", shared=0.2) for name, task in TASKS.items()}
    assert quick.pop("ag_news") is None and {t.model for t in quick.values()} == {MLP((32,))}
    assert all(t.dataset == "digits" and t.partition.shared == 0.2 for t in quick.values())


def gated(effects, noise=0.001, seeds=3):
    """Scores of the quick plan at S = 0: 0.8, and what ``effects`` says of a choice or a method."""
    rng = np.random.default_rng(0)
    rows = []
    for run in GATES.runs("quick", "digits"):
        gained = sum(effects.get(place, 0.0) for place in [run.method, *run.where.items()])
        for seed in range(seeds * (run.where["S"] == 0)):
            value = 0.8 + gained + noise * rng.standard_normal()
            rows.append({"method": run.method, "seed": seed, **run.where, "value": value})
    made = pd.DataFrame(rows)
    return made.fillna(dict.fromkeys([STAGE, "activation", "initialisation", "weights"], ""))


@pytest.mark.parametrize(
    ("worse", "long", "verdict"), [(-1, -0.005, HOLDS), (1, 0.1, CONTRADICTED)]
)
def test_claims_are_what_is_built_in(worse, long, verdict):
    effects = dict.fromkeys([*OTHERS, ("k", 2)], 0.1 * worse)
    effects |= {("k", 10): 0.05 * worse, ("lr", 0.5): -0.1 * worse, ("epochs", 10): long}
    effects[MAJORITY] = 0.5 * worse
    told = gate_claims(gated(effects), SETTING)
    assert len(told) == 8 and {c.verdict for c in told} == {verdict}, told


def test_numbers_and_choices_of_gates_vary_while_the_rest_stays():
    table = gated({("k", 2): 0.1, ("layers", 2): 0.1, ("activation", "relu"): -0.2}, noise=0.0)
    rows = varied(table, "k", SETTING.clients // 2)
    assert {*rows["method"]} == {"FedPer"} and {*rows[STAGE]} == {WITH_MOE}
    assert rows.groupby("k")["value"].agg(["size", "mean"]).to_numpy().tolist() == [
        [3, pytest.approx(0.9)], [3, pytest.approx(0.8)], [3, pytest.approx(0.8)],
    ]  # fmt: skip
    cold = varied(table, "T", 1.0, {"gamma": SETTING.gamma})
    assert sorted(cold["T"].unique()) == sorted(SETTING.temperatures)
    found = made_of(table).groupby(["part", "choice"])["value"].agg(["mean", "size"])
    assert {*found.index} == OTHERS and (found["size"] == 3).all()
    changed = found["mean"][found["mean"].abs().gt(1e-9)].to_dict()
    assert changed == pytest.approx({("activation", "relu"): -0.2, ("layers", 2): 0.1})


def test_at_a_high_temperature_all_but_the_constant_is_the_cosine():
    """FACTS 9.2: H = T log D + cos / D + O(Var / T), and max_d v_d for T near zero."""
    draw = torch.Generator().manual_seed(0)
    own = torch.randn(4, 1, 10, generator=draw).double()
    said = torch.randn(4, 6, 10, generator=draw).double()
    unit = torch.nn.functional.normalize
    v = unit(said, dim=-1) * unit(own, dim=-1)
    energies = {t: (t * (v / t).logsumexp(-1)).numpy() for t in (100.0, 1.0, 1e-4)}
    table = analysis.told(energies, 10)
    assert table.loc[100.0, "T log D"] == pytest.approx(100 * np.log(10))
    spread = float(v.mean(-1).std(1, correction=0).mean())
    assert table.loc[100.0, "spread"] == pytest.approx(spread, rel=0.05)
    by_cosine = ranks(v.sum(-1).numpy())
    np.testing.assert_array_equal(ranks(energies[100.0].astype(float)), by_cosine)
    np.testing.assert_allclose(energies[1e-4], v.max(-1).values.numpy(), atol=1e-3)
    last = table.columns[-1]
    assert table.loc[100.0, last] == pytest.approx(1) and table.loc[1e-4, last] < 0.99
    random = analysis.like_the_cosine((4, 512), (1e-3, 100.0)).groupby(["method", "T"])["value"]
    assert random.mean()["D = 512", 100.0] == pytest.approx(1)
    assert random.mean()["D = 512", 1e-3] < random.mean()["D = 4", 100.0]


def test_from_ones_own_head_to_the_mean_of_all():
    """Heads that say 0 and 1 of everything; the second one's mixture says 0 once t > 2 / 3."""
    said = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]).expand(2, 2, 2)
    assert analysis.evened(said, 1.0).tolist() == [[[1.0, 0.5]] * 2] * 2
    tests, ts = [torch.tensor([0]), torch.tensor([1])], (0.0, 0.6, 0.7, 1.0)
    course = analysis.toward_even(said, torch.tensor([0, 1]), tests, ts)
    found = course.groupby("method")["value"].apply(list).to_dict()
    assert found == {"local test sets": [1.0, 1.0, 0.5, 0.5], "global test set": [0.5] * 4}


def test_heads_are_those_of_clients():
    per = PRIVATE_PARTS.experiments("quick", "digits", "FedPer, S = 0", rounds=1)[0]
    fed, (_, state) = per.task.build(0), run_with_state(per, progress=False)
    said, client = analysis.heads_say(fed, state), 3
    own = state.server_params | {name: t[client] for name, t in state.client_params.items()}
    logits = fed.net.logits(own, fed.net.features(own, fed.test.inputs(torch.arange(5))))
    torch.testing.assert_close(said[:5, client], logits)


def test_each_k_is_compared_with_the_default_on_the_same_seed():
    """By hand, two seeds: k = 2 loses 5 and 10 points, the default renormalised gains 1 and 0."""
    made = {
        (np.nan, ""): (0.9, 0.8), (2, "as they are"): (0.85, 0.7),
        (np.nan, "renormalised"): (0.91, 0.8), (np.nan, "favouring its own"): (0.1, 0.1),
    }  # fmt: skip
    rows = [(k, w, seed, v) for (k, w), of in made.items() for seed, v in enumerate(of)]
    table = pd.DataFrame(rows, columns=["k", "weights", "seed", "value"])
    table = table.assign(method="FedPer", stage=WITH_MOE, S=0.0)
    found = analysis.by_top(table, 10).set_index(["method", "k", "seed"])["value"].round(9)
    assert found.to_dict() == {
        (analysis.PLAIN, 10, 0): 0, (analysis.PLAIN, 10, 1): 0,
        (analysis.PLAIN, 2, 0): -5, (analysis.PLAIN, 2, 1): -10,
        (analysis.RENORMALISED, 10, 0): 1, (analysis.RENORMALISED, 10, 1): 0,
    }  # fmt: skip
    plain = table[table["weights"].isin(["", "as they are"])].assign(weights="")
    assert analysis.differences(plain, "k", 10).loc[2, 0.0].startswith("-7.5")


def test_headings_pair_what_both_stages_have():
    """Two methods, of which only one was denoised at S = 0; by hand: .8 - .7, and .6 before."""
    columns = ["method", "S", "seed", "after", "before"]
    rows = [("FedPer", 0.0, 0, 0.7, 0.6), ("FedRep", 0.0, 0, 0.1, 0.2)]
    mixed = pd.DataFrame(rows, columns=columns)
    mixed = pd.concat([mixed, mixed.assign(S=20.0)])
    fields = analysis.by_stage({"mixed": mixed, "denoised": mixed[::2].assign(after=0.8)})
    assert [*fields] == ["S = 0", "S = 20"]
    assert fields["S = 0"].set_index("method")["value"].to_dict() == {
        "mixed": 0.7, "denoised": 0.8, "alone": 0.6,
    }  # fmt: skip


def test_what_a_second_stage_costs_is_told_per_epoch_and_round(monkeypatch):
    """By hand: 40 epochs in 8 s and 10 rounds in 100 s: (8 / 40 x 50) / (100 / 10 x 2000)."""
    first = SimpleNamespace(rounds=10, seed=3)
    gates = SimpleNamespace(before=(first,), seed=3, algorithm=SimpleNamespace(epochs=40))
    spent = {id(first): 100.0, id(gates): 8.0}
    made = lambda one: SimpleNamespace(provenance={"cpu_seconds": spent[id(one)]})  # noqa: E731
    runs = [(SimpleNamespace(where={"S": s, "stage": "+ PM-MoE"}), [gates]) for s in (0.0, 20.0)]
    section = SimpleNamespace(by_run=lambda *of: runs)
    monkeypatch.setattr(analysis, "PRIVATE_PARTS", section)
    monkeypatch.setattr(analysis, "find_result", made)
    panel = SimpleNamespace(scale="standard", dataset="mnist")
    assert analysis.second_stage_cost(panel) == {3: pytest.approx(0.0005)}
