"""Plots, explorers and live runs: what a reader sees."""

import re
import warnings
from base64 import b64decode, b64encode
from dataclasses import replace

import ipywidgets as w
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot as plt

from companion.claims import HOLDS, OPEN, OURS, PAPER, TRAINING, Claim, judge, table
from companion.frames import matrix, together
from companion.panels import Panel, comparable, having, panels, several, stored
from companion.plotting import curves
from companion.sections import (
    DIGITS,
    FAITHFUL,
    PROTOCOL,
    REDUCED,
    SCALES,
    NothingStored,
    OtherData,
    Run,
)
from companion.what_ran import what_ran
from companion.widgets import (
    MOST,
    LiveRun,
    claims_table,
    explorer,
    folded,
    moving,
    name_scales_in_tables,
    watch,
)
from fedlib import paths
from fedrun import Result, run
from fedrun.baseline import BelowBaseline
from fedrun.sweeps import sweep
from papers.fedmix import ENSEMBLE, FEDAVG, FEDMIX, UNREGULARISED
from papers.fedmix.experiments import COMMUNICATION, LABEL_SKEW, LONG, ROTATED
from papers.pm_moe.experiments import FOURTEEN
from papers.registry import REGISTRY
from papers.scaled import MAJORITY
from papers.specialists.experiments import SPECIALISTS


def has(monkeypatch, stored):
    """Let those experiments be found for which ``stored`` is so, with two accuracies each."""
    rows = {"round": [0, 1], "metric": "test_accuracy", "client": 0, "value": [0.1, 0.5]}
    rows = pa.table(pd.DataFrame(rows))
    found = lambda one: Result(one, rows, {}) if stored(one) else None  # noqa: E731
    monkeypatch.setattr("companion.panels.find_result", found)


def small(rounds=4):
    return LABEL_SKEW.experiments("quick", "digits", FEDMIX, seeds=1, rounds=rounds)[0]


@pytest.mark.slow
def test_live_run_equals_the_stored_run_and_remembers():
    experiment = small()
    live = LiveRun(experiment)
    live.advance(2)
    live.advance(4)
    assert len(live.history) == 5 and live.history[0]["q"].shape == (10, 4)
    frame = together([(FEDMIX, {}, [run(experiment, progress=False)])])
    last = matrix(frame, "q", FEDMIX, 0, 4).astype(np.float32)
    np.testing.assert_array_equal(last, live.history[4]["q"])
    assert [*watch(experiment).pictures] == ["round 0", "round 4"]
    with pytest.raises(StopIteration):
        live.advance(5)


@pytest.mark.slow
def test_panels_train_a_scale_and_add_what_is_stored():
    shown = panels(LABEL_SKEW, [FEDAVG, FEDMIX], "quick", rounds=2, seeds=1, device="cpu")
    assert [p.name for p in shown] == ["Digits (quick)"] and shown[0].trained
    assert shown[0].rounds == 2
    assert set(shown[0].frame["method"]) == {FEDAVG, FEDMIX}
    small = panels(LABEL_SKEW, [FEDAVG], "quick", larger=[FEDMIX], rounds=1, seeds=1, device="cpu")
    assert set(small[0].frame["method"]) == {FEDAVG}
    assert stored(LABEL_SKEW, [FEDAVG], "standard") == []
    with pytest.raises(OtherData, match="unknown data set at scale 'quick' 'cifar10'; allowed"):
        panels(LABEL_SKEW, [FEDAVG], "quick", "cifar10")


def test_panels_do_not_warn_of_methods_below_the_baseline_that_they_draw(monkeypatch, recwarn):
    """Notebook 10 wrote such a note into a reader's notebook."""

    def swept(experiments, device):
        warnings.warn("FedAvg is no better: 0.3", BelowBaseline, stacklevel=1)
        warnings.warn("the disk is nearly full", stacklevel=1)
        return sweep(experiments, device=device)

    monkeypatch.setattr("companion.panels.sweep", swept)
    panels(LABEL_SKEW, [FEDAVG], "quick", rounds=1, seeds=1, device="cpu")
    assert [str(one.message) for one in recwarn] == ["the disk is nearly full"]


def test_a_scale_of_which_nothing_is_stored_is_named(monkeypatch):
    monkeypatch.setenv("FEDLIB_STORED", "1")
    with pytest.raises(NothingStored, match=r"of long nothing .* --scale paper --section long"):
        panels(LONG, [], "paper")
    with pytest.raises(NothingStored, match="of long, label_skew nothing is stored"):
        several((LONG, LABEL_SKEW), "paper")


def test_panels_draw_what_is_there_and_name_what_is_not(monkeypatch):
    seeds = {FEDAVG: 3, FEDMIX: 2, ENSEMBLE: 0, UNREGULARISED: 3}

    def there(one):
        here = {runs[m]: m for m in seeds}
        method = here.get(replace(one, seed=0))
        return method is not None and one.seed < seeds[method]

    has(monkeypatch, there)
    runs = {r.method: r.experiment for r in LABEL_SKEW.runs("standard", "cifar10")}
    panel = next(p for p in stored(LABEL_SKEW, [*seeds], "standard") if p.dataset == "cifar10")
    assert set(panel.frame["method"]) == {FEDAVG, UNREGULARISED} and having([panel], FEDAVG)
    asked = LABEL_SKEW.settings("standard")["cifar10"].seeds
    assert panel.absent == {FEDMIX: f"2 of {asked} seeds", ENSEMBLE: "not trained yet"}
    few = panel.only([FEDAVG, ENSEMBLE])
    assert set(few.frame["method"]) == {FEDAVG} and [*few.absent] == [ENSEMBLE]
    assert not having([few], FEDAVG, UNREGULARISED)
    figure, _ = curves({few.name + ", here": few.frame}, ylabel="accuracy")
    told = figure.legends[0].get_title().get_text()
    name = few.name.replace("standard", "reduced")  # as figures call it
    assert told == f"{name}, here, not trained yet: {ENSEMBLE}"


def test_where_the_floor_alone_is_stored_there_is_nothing_to_show(monkeypatch):
    """It costs nothing and came first: its panel had a field without a curve, and no seeds."""
    floor = {e for r, es in FOURTEEN.by_run("standard", "mnist", [MAJORITY]) for e in es}
    has(monkeypatch, floor.__contains__)
    assert floor and not stored(FOURTEEN, [], "standard")
    assert not stored(FOURTEEN, [], "standard", part=True)


@pytest.mark.parametrize(("ps", "shown"), [((0.3, 0.6), 0), ((0.6, 1), 0), ((0.3, 0.6, 1), 1)])
def test_a_range_is_shown_when_both_of_its_ends_are_stored(monkeypatch, ps, shown):
    """Else skew is compared with itself, and a mean over half of the range taken for one of all."""
    every = SPECIALISTS.by_run("paper", "cifar10", [])
    there = {e for run, experiments in every if run.where["p"] in ps for e in experiments}
    has(monkeypatch, there.__contains__)
    panels = [p for p in stored(SPECIALISTS, [], "paper") if p.dataset == "cifar10"]
    assert [sorted(p.frame["p"].unique()) for p in panels] == [list(ps)] * shown
    assert [p.left for p in panels] == [["p = 0.7", "p = 0.8"]] * shown
    for p in panels:  # also where some of the methods are shown
        told = dict.fromkeys(("p = 0.7", "p = 0.8"), "not trained yet")
        assert p.only(["FedAvg"]).name.absent == told and not p.absent
        (claim,) = p.judged(lambda frame: [Claim("all p", "", "3", HOLDS, 3)])
        assert claim.measured == "3; still without p = 0.7 and p = 0.8"


def test_what_a_paper_says_of_one_data_set_is_ours_on_another():
    """And decides nothing of it, as does a setting that was chosen by looking at what it shows."""
    section = SPECIALISTS.settings("quick")["digits"]
    about = {"quote": "q", "data": "cifar10", "published": 2, "published_se": 1}
    one = Claim("it falls", "Fig. 3", "3", HOLDS, 3, **about)
    theirs, ours = (PAPER, "q", "2"), (OURS, "", "nan")
    for dataset, scale, chosen, whose, where in (
        ("digits", "quick", False, (*theirs, False), ""),
        ("cifar10", "standard", False, (*theirs, False), REDUCED),
        ("cifar10", "paper", True, (*theirs, True), PROTOCOL),
        ("cifar100", "standard", False, (*ours, True), REDUCED),
    ):
        setting = replace(section, exploratory=chosen)
        (told,) = Panel(dataset, scale, setting, pd.DataFrame(), trained=False).judged(
            lambda _: [one]
        )
        found = told.kind, told.quote, str(told.published), told.exploratory
        assert found == whose and told.setting == where
        assert str(told.published) == str(told.published_se * 2)
        assert told.dataset == ("" if scale == "quick" else dataset)


@pytest.mark.parametrize("faithful", FAITHFUL)
def test_where_training_ends_is_judged_of_curves_that_rise_at_the_papers_own_rounds_alone(faithful):
    setting = replace(SPECIALISTS.settings("quick")["digits"], faithful=faithful)
    how = {"trained": False, "rising": {"Mixture": 0.01, "other": 0.5}}
    panel = Panel("cifar10", "standard", setting, pd.DataFrame(), **how)
    ends = [Claim("a", "", "3", HOLDS, 3, methods=m) for m in ("Mixture; FedAvg", "FedAvg", "")]
    found = [one.verdict for one in panel.judged(lambda _: ends)]
    assert found == [TRAINING if faithful in (REDUCED, DIGITS) else HOLDS, HOLDS, HOLDS]


def test_a_panel_is_judged_with_the_looks_of_its_setting():
    """Four seeds after a look at three; nobody looked at three before."""
    setting = replace(SPECIALISTS.settings("quick")["digits"], looks=((4, 2),))
    values = {0: 0.011, 1: 0.014, 2: 0.018, 3: 0.015}
    panel = Panel("digits", "quick", setting, pd.DataFrame(), trained=False)
    for seeds, looks in ((4, 2), (3, 1)):
        some = {seed: values[seed] for seed in range(seeds)}
        (told,) = panel.judged(lambda frame, some=some: [judge("a", "b", some, 0.0)])
        assert told.p == pytest.approx(looks * judge("a", "b", some, 0.0).p)


def found_of(stored, methods=("FedAvg", "Mixture"), places=(0.3, 0.7), asked=5):
    """What is found of a grid of runs: of each the first so many seeds (3), a number per result."""
    keys = [(m, p) for m in methods for p in places]
    counts = {key: stored.get(key, 3) for key in keys}
    results = {key: [i if i < n else None for i in range(asked)] for key, n in counts.items()}
    return [(Run(m, None, {"p": p}), results[m, p]) for m, p in keys]


def left_of(found):
    return {(run.method, run.where.get("p")): len(runs) for run, runs in comparable(found)}


EVERY = [(m, p) for m in ("FedAvg", "Mixture") for p in (0.3, 0.7)]


PARTS = [
    ({("FedAvg", 0.3): 5, ("Mixture", 0.3): 4}, {0.3: 3, 0.7: 3}),
    # A new place that is not there yet, in part or whole.
    ({("FedAvg", 0.7): 0, ("Mixture", 0.7): 0}, {0.3: 3}),
    ({("FedAvg", 0.7): 2, ("Mixture", 0.7): 2}, {0.3: 3}),
    ({("Mixture", 0.7): 2}, {0.3: 3}),
    # Nobody has three seeds: those that all have.
    (dict.fromkeys(EVERY, 1) | {("FedAvg", 0.3): 2}, {0.3: 1, 0.7: 1}),
    (dict.fromkeys(EVERY, 5), {0.3: 5, 0.7: 5}),
    (dict.fromkeys(EVERY, 0), {}),
]


@pytest.mark.parametrize(("there", "left"), PARTS)
def test_what_is_stored_in_part_is_compared_on_the_same_seeds_and_places(there, left):
    assert left_of(found_of(there)) == {(m, p): left[p] for m, p in EVERY if p in left}
    assert all(runs == [*range(len(runs))] for _, runs in comparable(found_of(there)))


def test_what_is_not_compared_may_have_other_seeds():
    """Else the first three seeds of a departure would take the fourth and fifth from the others."""
    found = [
        (Run("FedAvg", None, {"p": p, "departure": way}), [*range(n), *[None] * (5 - n)])
        for p in (0.3, 0.7)
        for way, n in (("early stopping", 5), ("as released", 3))
    ]
    assert {len(runs) for _, runs in comparable(found)} == {3}
    kept = [(run.where["departure"], len(runs)) for run, runs in comparable(found, "departure")]
    assert kept == [("early stopping", 5)] * 2 + [("as released", 3)] * 2


def test_seeds_of_another_look_wait_for_each_other():
    """With six of eight seeds a claim would be judged at a look that nobody has planned."""
    looks = ((4, 2), (7, 3))
    for done, shown in enumerate((1, 2, 3, 3, 3, 6, 6, 8), 1):
        found = found_of({("FedAvg", 0.3): done}, places=(0.3,), methods=("FedAvg",), asked=8)
        kept = [runs for _, runs in comparable(found, looks=looks)]
        assert kept == [[*range(shown)]], done


@pytest.mark.parametrize("lost", [(0.3, 0.33), (0.7, 0.0)])
def test_a_mean_over_p_is_over_the_same_p_with_and_without_exploration(lost):
    grid = [(p, eps) for p in (0.3, 0.5, 0.7) for eps in (0.0, 0.33)]
    found = [(Run(m, None, {"p": p, "eps": e}), [0, 1, 2]) for p, e in grid for m in ("a", "b")]
    found += [(Run("alone", None, {"p": p}), [0, 1, 2]) for p in (0.3, 0.5, 0.7)]
    found += [(Run("floor", None), [0, 1, 2])]
    cut = [(run, [0, 1, None] if (*run.where.values(),) == lost else r) for run, r in found]
    left = {(run.where.get("p"), run.where.get("eps")) for run, _ in comparable(cut)}
    alone = [(p, None) for p in (0.3, 0.5, 0.7, None)]
    assert left == {at for at in [*grid, *alone] if at[0] != lost[0]}
    assert len(comparable(found)) == len(found)


def test_a_method_that_is_there_in_part_or_unknown_hides_nothing():
    assert [*left_of(found_of({("New", 0.7): 0}, ("FedAvg", "Mixture", "New")))] == EVERY
    runs = LABEL_SKEW.runs("quick", "digits", [FEDMIX, "no such"])
    assert [run.method for run in runs] == [FEDMIX]


@pytest.mark.parametrize(("fedmix", "more"), [([*range(5)], {"FedMix": 4}), ([0, None, 2], {})])
def test_a_costly_method_keeps_its_own_number_of_seeds(fedmix, more):
    seeds = {"FedAvg": [0, 1, 2, 3, None], "VAE": [0], "FedMix": fedmix}
    found = left_of([(Run(m, None), given) for m, given in seeds.items()])
    assert {m: n for (m, _), n in found.items()} == {"FedAvg": 4, "VAE": 1, **more}


def test_explorers_redraw_and_say_what_went_wrong():
    drawn = []

    def draw(n):
        drawn.append(n)
        if n == 3:
            raise ValueError("three is <too> many")
        return plt.figure()

    slider = w.IntSlider(1, 0, 5)
    box = explorer(draw, n=slider)
    still = box._repr_mimebundle_()["image/png"]  # what a page without a kernel shows
    assert b64decode(still).startswith(b"\x89PNG")
    status = box.children[1]
    for value in (2, 3, 4):
        slider.value = value
        assert ("ValueError" in status.value) == ("three is" in status.value) == (value == 3)
        assert (status.value == "") == (value != 3)
    assert drawn == [1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):  # what cannot draw at all fails at once
        explorer(lambda n: 1 / n, n=w.IntSlider(0, 0, 5))
    assert watch(small(2)) is not None


def test_what_controls_hold_is_not_written_out():
    """Menus hold panels, whose frames of a million rows took 40 s of a notebook to write out."""
    frame = pd.DataFrame({"value": [12345.5]})
    panel = Panel("digits", "quick", None, frame, trained=True, untrained=frame)
    menu = w.Dropdown(options=[("one", panel), ("two", frame)])
    box = explorer(lambda of: plt.figure(), of=menu)
    assert "12345" not in repr(panel)
    assert "12345" not in repr(box) + box._repr_mimebundle_()["text/plain"]


def test_a_page_without_a_kernel_has_a_frame_for_every_value_of_one_control():
    slider = w.SelectionSlider(options=["1", "22", "</b>"], value="22", description="a")
    box = explorer(lambda of: plt.figure(figsize=(len(of), 1)), moves="of", of=slider)
    assert [*box.pictures] == ["a 1", "a 22", "a </b>"] and slider.value == "22"
    html = box._repr_mimebundle_()["text/html"]
    pictures = [f"data:image/png;base64,{b64encode(png).decode()}" for png in box.pictures.values()]
    assert [html.count(picture) for picture in pictures] == [1, 1, 1]
    without_script = html.partition("<script>")[0]
    assert pictures[1] in without_script and 'alt="a 22"' in without_script
    assert html.count("</script>") == 1 and "</b>" not in html and "http" not in html
    keys = {re.search('data-frames="(.*?)"', moving(box.pictures, i))[1] for i in (0, 1)}
    assert len(keys) == 2  # so that no script takes another one's card


def test_a_table_of_claims_has_eight_rows_in_sight_and_every_test_below():
    """What a paper says comes first, once; what we add is among the tests alone."""
    names = [f"claim {i}" for i in range(MOST + 2)]
    about = {"paper": "000", "setting": REDUCED, "dataset": "cifar10"}
    every = [Claim(n, "Fig. 1", "1", OPEN, 3, name=n, **about) for n in names]
    every += [replace(every[0], verdict=HOLDS, setting=PROTOCOL), replace(every[1], kind=OURS)]
    every += [Claim("what we add", "", "2", HOLDS, 3, kind=OURS, exploratory=True)]
    html = claims_table(table({"CIFAR-10 (standard)": every}), "07_claims", "standard").data
    seen, hidden = html.split("<details>")
    assert [n for n in names if f">{n}<" in seen] == names[:MOST] and "what we add" not in seen
    assert seen.count("<b style") == MOST and seen.count(f"{PROTOCOL}, CIFAR-10") == 1
    assert f"2 more claims and {len(every)} tests" in hidden
    assert hidden.count("<b style") == 2 + len(every) and "ours, exploratory" in hidden
    assert len(pd.read_csv(paths.figures() / "standard" / "07_claims.csv")) == len(every)
    assert "0 tests" in claims_table(table({}), "07_claims", "quick").data


# By their places: README's first, and the manual's algorithm, network, pictures and numbers.
EXAMPLES = [
    (0, 20, ["round 0: 0.", "round 2: 0."]), (1, 20, ["tau = 0.0", "tau = 1.0"]),
    (2, 20, ["FedAvg: accuracy 0.", "FedBN: accuracy 0."]),
    *((i, 10, ["round 0: ", "round 2: "]) for i in (3, 4)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("which", "rounds", "said"), EXAMPLES)
def test_the_worked_examples_of_readme_and_manual(capsys, places, which, rounds, said):
    pages = (paths.ROOT / "README.md", paths.ROOT / "docs" / "MANUAL.md")
    text = "".join(page.read_text() for page in pages)
    assert text.count("```python") == len(EXAMPLES)
    example = text.split("```python")[which + 1].split("```")[0]
    assert sum(bool(line) for line in example.splitlines()) < 40
    assert f"rounds={rounds}" in example
    short = example.replace(f"rounds={rounds}", "rounds=2").replace(f"[{rounds}]", "[2]")
    exec(compile(short, "example", "exec"), {})
    out = capsys.readouterr().out
    assert all(word in out for word in said)


# What ran, in words, and the code that ran.


def panels_of(section, scale):
    seeds = pd.DataFrame({"seed": [0, 1]})
    return [Panel(n, scale, s, seeds, trained=True) for n, s in section.settings(scale).items()]


def test_what_ran_stands_beside_the_papers_own():
    table = what_ran(LABEL_SKEW, panels_of(LABEL_SKEW, "quick"))
    assert [*table] == ["Digits (quick)", "CIFAR-10 (paper)"]
    quick, paper = (table[name] for name in table)
    assert quick["clients"] == "20" and paper["clients"] == "100"
    assert paper["rounds"] == "2000" and (quick["seeds"], paper["seeds"]) == ("2", "")
    assert paper["network"].startswith("LeNet(") and paper["parameters"] == "443,306"
    assert quick["examples, training + test"] == "1,437 + 360"
    assert paper["server's optimiser"] == "Adam, rate 0.001"


def test_a_setting_of_the_papers_that_ran_has_one_column():
    """There were two that differed in their number of seeds."""
    table = what_ran(LABEL_SKEW, panels_of(LABEL_SKEW, "paper"))
    assert "CIFAR-10 (paper)" in table and table.columns.is_unique
    assert set(table.loc["seeds"]) == {"2"}


def test_what_ran_has_panels_of_other_sections_and_no_method_that_did_not_run():
    """The network that the results stand on was missing, and one that never ran was there."""
    (panel,) = panels_of(LONG, "standard")
    wide = what_ran(LONG, [panel]).iloc[:, 0]
    panel = replace(panel, absent={"FedAvg, 4x parameters": "not trained yet"})
    table = what_ran(LABEL_SKEW, panels_of(LABEL_SKEW, "quick"), {"2,000 rounds": (LONG, panel)})
    assert [*table] == ["2,000 rounds", "Digits (quick)", "CIFAR-10 (paper)"]
    ran = table["2,000 rounds"]
    assert (ran["network"], ran["rounds"], ran["seeds"]) == ("LeNet()", "2000", "2")
    assert wide["network"] == "LeNet(); LeNet(channels=(24, 64))"


def test_tables_call_the_scales_as_figures_do():
    """They called them by the names that code has."""
    shell = InteractiveShell.instance()
    try:
        name_scales_in_tables()
        table = pd.DataFrame({"CIFAR-10 (standard)": [0.5]}, index=["MNIST (paper), K = 2"])
        html = shell.display_formatter.format(table)[0]["text/html"]
        html += folded("all", table.reset_index()).data
    finally:
        InteractiveShell.clear_instance()
    assert html.count("CIFAR-10 (reduced)") == 2 == html.count("MNIST (paper scale), K = 2")


def test_what_ran_has_the_rounds_that_were_asked_for():
    """It told the scale's own rounds, whatever ran."""
    asked = [replace(p, rounds=7) for p in panels_of(LABEL_SKEW, "quick")]
    assert what_ran(LABEL_SKEW, asked)["Digits (quick)"]["rounds"] == "7"
    assert what_ran(LABEL_SKEW, asked).iloc[:, 1]["rounds"] == "2000"


def test_a_panel_names_the_data_that_were_trained_on():
    names = {p.dataset: p.name for p in panels_of(COMMUNICATION, "standard")}
    assert names["femnist"] == "MNIST (standard)" and names["cifar10"] == "CIFAR-10 (standard)"
    turned = [[p.name for p in panels_of(ROTATED, scale)] for scale in ("quick", "standard")]
    assert turned[0] == ["Rotated digits (quick)", "Rotated digits, label skew (quick)"]
    assert turned[1] == ["Rotated MNIST (standard)", "Rotated MNIST, label skew (standard)"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("section", REGISTRY.sections.values(), ids=lambda s: s.name)
def test_panels_have_titles_of_their_own_and_no_names_of_code(section, scale):
    names = [p.name for p in panels_of(section, scale)]
    assert len({*names}) == len(names) and not any("_" in name for name in names)


@pytest.mark.parametrize("section", REGISTRY.sections.values(), ids=lambda s: s.name)
def test_every_section_can_tell_what_ran(section):
    smallest = next(scale for scale in SCALES if section.settings(scale))
    table = what_ran(section, panels_of(section, smallest))
    assert table.notna().all(axis=None) and not table.drop("seeds").eq("").any(axis=None)
