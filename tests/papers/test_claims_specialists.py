"""Scores of generalists and specialists: set beside the papers', and judged."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from rows import frame_of, initials, runs_of
from test_opt_out import TASK, same_bits

from companion import frames
from companion.claims import HOLDS
from fedlib import MLP, FastText, FedAvg, LocalHoldout, NaturalPartition, OptOut, Task
from fedlib import data as datasets
from fedlib.federation import OPTED_IN
from papers import numbers
from papers.claimed import TESTS, _complete
from papers.scaled import FEDAVG, LOCAL, TUNED
from papers.specialists import analysis, claims
from papers.specialists.analysis import GLOBAL, HELD, OWN
from papers.specialists.experiments import FIRST_OPTED, LAST_CLIENT, MIXTURE, SMALL
from papers.specialists.opting import tampered, trace

CIFAR10 = analysis.printed().query("data == 'cifar10'")


def grid(values, **places):
    """A frame of client accuracies: ``values`` by (method, metric), at every place given."""
    names = ("method", "metric", *places)
    every = itertools.product(values.items(), *places.values())
    rows = [(*of, *at, value) for (of, value), *at in every]
    return frame_of(*(dict(zip((*names, "value"), row, strict=True)) for row in rows))


def table_of(values, ps=(0.2, 1.0), seeds=3, **more):
    """Scores by (method, metric), with a little noise by seed that is not that of all methods."""
    table = grid(values, p=ps, seed=range(seeds))[["method", "metric", "p", "seed", "value"]]
    return table.assign(value=table["value"] + 0.001 * table["seed"], **more)


def test_noisy_training_losses_are_averaged_over_rounds_and_validation_is_not():
    logged = {(FEDAVG, metric): 0 for metric in analysis.LOSSES.values()}
    frame = grid(logged, p=(0.2, 1.0), seed=range(2), round=range(101))
    frame["value"] = 10.0 * (frame["round"] % 2)  # 0, 10, 0, 10, ...
    drawn = analysis.losses(frame).groupby("method")["value"].unique()
    assert {name: sorted(values) for name, values in drawn.items()} == {
        f"{skew}, {of}": [5.0] if of == "training" else [0.0, 10.0]
        for skew in analysis.SKEWS
        for of in analysis.LOSSES
    }


def test_a_run_ends_with_the_state_that_it_kept():
    frame = grid({("a", "m"): 0, ("b", "m"): 0}, round=(0, 2, 4), client=range(3))
    frame["value"] = 10.0 * frame["round"] + frame["client"]
    kept = frame_of({"method": "b", "round": 4, "metric": "kept_round", "value": 2.0})
    frame = pd.concat([frame, kept])
    assert frames.ended(frame, "m")["value"].tolist() == [41.0, 21.0]
    assert frames.ended(frame, "m", clients=2)["value"].tolist() == [40.5, 20.5]


def noisy(table):
    apart = np.arange(len(table)) / len(table)
    return table.assign(value=table["value"] + 1e-4 * table["seed"] * apart)


EVERYWHERE = {FEDAVG: 0.40, MIXTURE: 0.38, TUNED: 0.35, LOCAL: 0.20}
AT_HOME = {FEDAVG: 0.40, MIXTURE: 0.60, TUNED: 0.605, LOCAL: 0.50}
PUBLISHED = {(m, GLOBAL): v for m, v in EVERYWHERE.items()}
PUBLISHED |= {(m, OWN): v for m, v in AT_HOME.items()}
SWAPPED = {**PUBLISHED, (TUNED, GLOBAL): 0.39, (MIXTURE, OWN): 0.58}
REPORTED = {(FEDAVG, HELD): 0.3, (LOCAL, HELD): 0.5, (TUNED, HELD): 0.45, (MIXTURE, HELD): 0.55}
LOW = {**PUBLISHED, (FEDAVG, GLOBAL): 0.3, (FEDAVG, OWN): 0.3}
ALONE = {(LOCAL, GLOBAL): 0.2, (LOCAL, OWN): 0.5}


def skewed(table):
    """FedAvg falls with p, training alone gains at home."""
    end = noisy(table)
    by = {FEDAVG: -0.05, LOCAL: 0.01}
    end["value"] += end["method"].map(by).fillna(0.0) * end["p"].eq(1.0) * end["metric"].ne(GLOBAL)
    return end


def opted(values=LOW):
    inside = [table_of(values, q=q) for q in (0.9, 0.95)]
    return noisy(pd.concat([*inside, table_of(ALONE, q=np.nan)], ignore_index=True))


def by_alpha(values):
    return noisy(table_of(values)).rename(columns={"p": "alpha"})


@runs_of("specialists")
def test_what_looks_as_published_holds_and_the_other_way_round_does_not(code, expected):
    judge, table = eval(code)
    found = judge(table)
    assert initials(found) == expected
    seeds = table["seed"].nunique()
    assert all(c.seeds == seeds or not c.seeds for c in found)


def test_what_opting_out_costs_is_a_mean_over_the_same_majority_fractions():
    """FedAvg loses 10 points at either p; without opting out only p = 1 was run, its worse one."""
    every = {(FEDAVG, GLOBAL): 0.5, (MIXTURE, GLOBAL): 0.5}
    opted, kept = table_of(every, q=0.95), table_of(every, ps=(1.0,), q=0.0)
    table = pd.concat([opted, kept], ignore_index=True)
    falls = 0.2 * table["p"].eq(1.0) + 0.1 * table["q"].gt(0)
    (cost,) = claims.robust(table.assign(value=table["value"] - falls * table["method"].eq(FEDAVG)))
    assert cost.effect == pytest.approx(10)


def test_a_section_in_training_is_not_judged_before_all_planned_seeds_are_in():
    """Four of twelve seeds of opting out in the first version were judged at once."""
    setting = SimpleNamespace(seeds=3)
    few, every = (
        SimpleNamespace(name="CIFAR-10", setting=setting, frame=pd.DataFrame({"seed": range(n)}))
        for n in (2, 3)
    )
    (test,) = (one for one in TESTS if one.section is FIRST_OPTED)
    assert [*test.of([few]).values()] == [[]]
    judge = _complete(lambda panel: [panel.name])
    assert (judge(few), judge(every)) == ([], ["CIFAR-10"])


def test_ends_of_a_range_are_compared_where_there_are_two():
    """Of one p it was judged whether FedAvg falls from it to itself: it does not."""
    one, two = (table_of(REPORTED, ps=ps, q=0.0) for ps in ((0.8,), (0.8, 1.0)))
    less, more = ([c.name for c in claims.first_version_claims(table)] for table in (one, two))
    assert "falls" in more and "falls" not in less


def test_all_settings_are_judged_by_the_one_that_is_most_against_it():
    """At p = 1 the mixture is 4 points behind; at p = .2 it leads by 3. Two looks double its p."""
    table = table_of({(MIXTURE, GLOBAL): 0.38, (TUNED, GLOBAL): 0.35}, seeds=4)
    worse = table["p"].eq(1.0) & table["method"].eq(MIXTURE)
    table.loc[worse, "value"] -= 0.07 + 0.002 * table["seed"]
    (claim,) = claims.furthest_behind(table)
    assert initials([claim]) == "c" and claim.measured.startswith("p = 1: ")
    (once,) = claims.furthest_behind(table[table["p"].eq(1.0)])
    assert claim.p == pytest.approx(2 * once.p) and claim.low < once.low
    assert claims.furthest_behind(table[table["seed"].eq(0)]) == []


@pytest.fixture
def released(monkeypatch):
    """As described 20 points above what is printed of CIFAR-10; as released 10, up and down."""
    known = analysis.printed("001", "cifar10").query("metric in (@GLOBAL, @OWN)")
    noise = pd.DataFrame({"seed": range(3), "more": [0.0, 0.3, -0.3]})
    plain = known.merge(noise, how="cross").eval("value = value + 0.2 + more")
    apart = plain.query("p > 0.5").eval("value = value - 0.1").assign(departure=LAST_CLIENT)
    apart.loc[apart["p"].eq(1.0), "value"] -= 0.2
    other = apart.assign(departure="own network", value=0.0)
    tables = {"as_released": pd.concat([apart, other]), "specialists": plain}
    monkeypatch.setattr(numbers, "panel", lambda section, *where: section)
    monkeypatch.setattr(analysis, "of_panel", tables.__getitem__)


def test_how_far_means_are_from_print(released):
    """Of means over seeds, whose noise cancels: the mean of the seeds' distances would be 23.3.

    Of the p that both have.
    """
    found = numbers._distances("cifar10", LAST_CLIENT, (FEDAVG,))
    assert found == {"described": "20.0", "released": "10.0"}


def test_what_the_last_client_loses_is_paired_by_seed(released):
    """By hand: 10 points where p is .8, 20 in the mean with the 30 where it is 1."""
    found = numbers._last_client()
    assert found["lost"].startswith("-15.0") and found["released"] == "10.0"


def test_measured_stands_beside_published():
    known = analysis.printed()
    assert len(known) == 3 * 2 * 5 * 4 and known["value"].between(0, 1).all()
    news = known[(known["data"] == "ag_news") & (known["metric"] == GLOBAL)]
    first = news[news["method"] == FEDAVG].set_index("p")["value"]
    assert first[0.5] == 0.8031 and first[0.7] == pytest.approx(7.6 * 0.1042, abs=1e-3)
    assert len(analysis.printed("002")) == 12
    kept = pd.DataFrame({"method": [MIXTURE] * 2, "seed": [0, 2], "p": [0.3] * 2})
    table = analysis.beside(table_of(PUBLISHED, ps=(0.25, 0.3)), CIFAR10, kept)
    assert table.loc[("global test", 0.3), FEDAVG] == "0.401 ± 0.002 (3) [0.426]"
    assert table.loc[("local test", 0.3), MIXTURE].endswith("[0.439] initial model kept: 2")
    assert table.loc[("local test", 0.25), LOCAL] == "0.501 ± 0.002 (3)"


def test_ratios_are_taken_on_the_same_seed_and_value():
    table = table_of({(FEDAVG, GLOBAL): 0.4, (MIXTURE, GLOBAL): 0.2}, seeds=2)
    table.loc[table["p"] == 1.0, "value"] *= 2
    ratio = analysis.of_fedavg(table, GLOBAL, "p")
    assert set(ratio["method"]) == {MIXTURE} and len(ratio) == 4
    np.testing.assert_allclose(ratio["value"], [0.5, 0.201 / 0.401] * 2, rtol=1e-6)


def test_departures_stand_beside_the_papers_reading_and_its_numbers():
    plain = table_of({(MIXTURE, OWN): 0.5, (TUNED, OWN): 0.4, (FEDAVG, OWN): 0.3}, ps=(0.8, 1.0))
    changed = {(MIXTURE, "log pool"): 0.6, (TUNED, "as released"): 0.2}
    ends = [({(m, OWN): v}, departure) for (m, departure), v in changed.items()]
    parts = [table_of(end, ps=(0.8,), departure=departure) for end, departure in ends]
    other = pd.concat(parts, ignore_index=True)
    moved = analysis.moved(other, plain).groupby(["departure", "method"])["value"].mean()
    expected = {("as released", TUNED): -0.2, ("log pool", MIXTURE): 0.1}
    assert moved.to_dict() == pytest.approx(expected)
    by_way = analysis.by_way(other, plain, CIFAR10).query("metric == @OWN")
    assert by_way["way"].unique().tolist() == [
        "published",
        "no early stopping",
        "log pool",
        "as released",
    ]
    assert {*zip(by_way["method"], by_way["p"], strict=True)} == {(MIXTURE, 0.8), (TUNED, 0.8)}


def test_how_far_ways_are_from_print_is_told():
    """Of two numbers 10 and 30 points above what is printed; released it is 4 above, 4 below.

    A third p, at which the released code was not run, counts for neither.
    """
    ways = {
        "published": (0.5, 0.5, 0.1),
        "no early stopping": (0.6, 0.8, 0.9),
        "released": (0.54, 0.46),
    }
    rows = [
        {"method": FEDAVG, "metric": OWN, "p": p, "way": way, "seed": 0, "value": values[p]}
        for way, values in ways.items()
        for p in range(len(values))
    ]
    far = analysis.distances(pd.DataFrame(rows)).set_index(["row", "group"])["mean"]
    assert far[FEDAVG].to_dict() == pytest.approx({"no early stopping": 20.0, "released": 4.0})
    table = analysis.columns_by_way(pd.DataFrame(rows))
    assert [*table] == ["published", "no early stopping", "released"]
    assert [*table.loc["local test", 2, FEDAVG]] == ["0.100", "0.900 (1)", ""]


def test_the_lead_over_fine_tuning_is_compared_at_the_same_places():
    """By hand: 10 points in print, and 0 and 20 released; p = 1, which was not released, is out."""
    values = {
        ("published", 0.8): [(0.5, 0.4)],
        ("published", 1.0): [(0.9, 0.1)],
        ("as released", 0.8): [(0.3, 0.3), (0.5, 0.3)],
        ("last client", 0.8): [(None, 0.3)],
    }
    rows = [
        {"method": m, "metric": GLOBAL, "p": p, "way": way, "seed": seed, "value": value}
        for (way, p), pairs in values.items()
        for seed, pair in enumerate(pairs)
        for m, value in zip((MIXTURE, TUNED), pair, strict=True)
    ]
    table = pd.DataFrame(rows)
    table.loc[table["way"] == "published", "seed"] = np.nan
    lead = analysis.leads(table).set_index("row")
    assert [*lead["group"].items()] == [("published", "published"), ("as released", "measured")]
    assert [*lead["mean"]] == pytest.approx([10.0, 10.0])
    assert [*lead.loc["as released", "values"]] == pytest.approx([0.0, 20.0])


def test_the_ledger_tells_who_sent():
    inside = grid({(FEDAVG, "opted_in"): 20.0}, round=[0], client=range(4))
    inside.loc[inside["client"] >= 2, "value"] = 0.0
    sent = grid({(FEDAVG, "client_bytes_up"): 3e6}, round=(1, 2), client=range(2))
    before = grid({(FEDAVG, "train_loss"): 0.1}, q=[0.0])
    here = pd.concat([inside.assign(q=0.5), sent.assign(q=0.5), before]).assign(p=0.2)
    table = analysis.ledger(here)
    row = table.loc[0.5]
    assert list(table.index) == [0.5], "what was not logged is not told"
    assert row["participating clients"] == 2 == row["opted-out clients"]
    assert row["smallest cohort"] == 2 == row["largest cohort"]
    assert row["MB up (participating)"] == 12 and row["MB up (opted out)"] == 0


def test_experts_of_other_architectures_are_judged():
    values = {(FEDAVG, GLOBAL): 0.5, (FEDAVG, OWN): 0.5, (SMALL, GLOBAL): 0.4, (SMALL, OWN): 0.6}
    # A stage for two of three clients is compared on these two.
    third = dict.fromkeys([(FEDAVG, GLOBAL), (FEDAVG, OWN)], 0.9)
    parts = (grid(of, seed=range(3), client=who) for of, who in ((values, (0, 1)), (third, [2])))
    found = claims.architecture_claims(analysis.scores(pd.concat(parts), 2))
    assert initials(found) == "hcn"  # fine-tuning was not run
    assert found[0].measured.startswith("0.600 vs 0.500")


@pytest.mark.parametrize(("p", "asked"), [(0.2, True), (0.5, True), (0.3, False)])
def test_iid_clients_are_those_whose_two_majority_classes_have_their_share(p, asked):
    """Two of ten classes have .2 of all examples, and two of four .5."""
    cells = itertools.product((FEDAVG, MIXTURE, TUNED, LOCAL), range(3), (p, 1.0), (GLOBAL, OWN))
    rows = [(m, seed, at, metric, 0.5 + 0.001 * seed) for m, seed, at, metric in cells]
    table = pd.DataFrame(rows, columns=["method", "seed", "p", "metric", "value"])
    said = {c.text: c.verdict for c in claims.generalisation_claims(table)}
    (text,) = [t for t in said if t.startswith("With i.i.d. clients")] or [""]
    assert bool(text) == asked and (not asked or said[text] == HOLDS)


def test_who_cannot_opt_out_counts_at_every_fraction():
    rows = [(MIXTURE, 0.0, 0.2), (MIXTURE, 0.9, 0.2), (LOCAL, np.nan, 0.2), (LOCAL, np.nan, 1.0)]
    here = analysis.at_q(pd.DataFrame(rows, columns=["method", "q", "p"]), 0.9)
    assert here["method"].tolist() == [MIXTURE, LOCAL]
    assert here["p"].tolist() == [0.2, 0.2]  # a p that nothing is compared at does not count


def test_a_figure_of_opting_out_has_nobody_and_the_two_largest_fractions():
    for qs, shown in (([0.0, 0.5, 0.75, 0.9, 0.95], [0.0, 0.9, 0.95]), ([0.0, 0.75], [0.0, 0.75])):
        assert analysis.of_figure(pd.DataFrame({"q": [*qs, np.nan]})) == shown


# Whether the check of opting out finds what a server would see of it.


KINDS = {"numbers": MLP((5,)), "pictures": MLP((5,)), "texts": FastText(12, 4)}
WORDS = ["fever", "cough", "ache", "rash", "cold", "sore", "burn", "sprain", "cramp", "bruise"]


def patients(kind):
    """Numbers of all sizes, pictures or texts of 160 patients in four hospitals."""
    draw = np.random.default_rng(0)
    who, ill = np.arange(160) % 4, draw.integers(2, size=160)
    if kind == "numbers":
        x = 100 + 20 * draw.normal(size=(160, 6)) + 10 * ill[:, None]
    elif kind == "pictures":
        x = draw.integers(0, 200, (160, 6, 6, 1), dtype=np.uint8)
    else:
        x = np.array([" ".join(draw.choice(WORDS[i:], 9)) for i in draw.integers(3, size=160)])
    return x, ill, {"hospital": who}


@pytest.mark.parametrize("opt_out", [OptOut(0.5), OptOut(1.0, share=0.5)], ids=["clients", "share"])
def test_the_check_finds_no_changed_byte_and_its_control_many(opt_out):
    task, algorithm = replace(TASK, opt_out=opt_out), FedAvg(batch_size=10)
    found = trace(task, algorithm, rounds=2, cohort=3)
    control = trace(task, algorithm, rounds=2, cohort=3, inside=True)
    leaves = 4 * task.build(0).net.parameters()
    assert found.bytes == control.bytes == 2 * (3 * leaves + leaves + 3 * 8)
    assert found.changed == 0 < control.changed


def test_only_what_opted_out_is_tampered_with():
    task = replace(TASK, opt_out=OptOut(1.0, share=0.5))
    fed, other, control = task.build(0), tampered(task, 0), tampered(task, 0, inside=True)
    assert torch.equal(other.train.x, fed.train.x) and torch.equal(other.train.y, fed.train.y)
    assert torch.equal(other.validation.x, fed.validation.x)
    assert torch.equal(control.train.x, 255 - fed.train.x)
    assert torch.equal(control.validation.x, fed.validation.x)
    home, changed, controlled = (f.full_view().train for f in (fed, other, control))
    out = home.indices[home.side[OPTED_IN] == 0]
    assert len(out) and torch.equal(changed.y[out], (home.y[out] + 1) % fed.classes)
    assert torch.equal(controlled.x[out], home.x[out])
    assert torch.equal(other.test.y, (fed.test.y + 1) % fed.classes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opt_out", [OptOut(0.25), OptOut(1.0, share=0.5)], ids=["all", "some"])
def test_nothing_is_fitted_to_what_opted_out_or_is_tested_on(kind, opt_out, places):
    """Whatever becomes of them before they are added, the others' inputs and model stay as is."""
    task = (
        "patients",
        NaturalPartition("hospital"),
        KINDS[kind],
        LocalHoldout(test=0.3, validation=0.2),
    )
    x, y, columns = patients(kind)
    datasets.add_data("patients", (x, y, columns))
    task = Task(*task, opt_out=opt_out)
    _, division, inside = task.divided(0)
    rows = division.parts["train"].flat[inside]
    fed, control = task.build(0), tampered(task, 0, inside=True)
    others, poisoned = np.setdiff1d(np.arange(160), rows), x.copy()
    held = division.parts["validation"]
    others = np.setdiff1d(others, held.flat[np.isin(held.owners, fed.participants)])
    poisoned[others] = {"numbers": 5000, "pictures": 255}.get(kind, "zzz bruise bruise cold")
    datasets.add_data("patients", (poisoned, y, columns))
    again = task.build(0)
    for one, other in ((fed, again), (fed, tampered(task, 0))):
        for split in ("train", "validation"):
            a, b = (
                next(getattr(f, split).blocks(f.by_id[f.participants], 9)) for f in (one, other)
            )
            assert all(same_bits(a[n], b[n]) for n in ("x", "y", "weight"))
    assert not torch.equal(fed.train.x, control.train.x)
    found = trace(task, FedAvg(batch_size=5), rounds=2, cohort=2)
    assert found.changed == 0 < found.bytes
