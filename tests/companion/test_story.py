"""What ran, in words, and the code that ran."""

from dataclasses import replace

import pandas as pd
import pytest

from companion.panels import Panel
from companion.sections import SCALES
from companion.story import source, what_ran
from fedlib.algorithms import FedMix, FedProx
from papers.fedmix.experiments import COMMUNICATION, LABEL_SKEW, ROTATED
from papers.registry import REGISTRY


def panels_of(section, scale):
    seeds = pd.DataFrame({"seed": [0, 1]})
    return [Panel(n, scale, s, seeds, trained=True) for n, s in section.settings(scale).items()]


def test_what_ran_stands_beside_the_papers_own():
    table = what_ran(LABEL_SKEW, panels_of(LABEL_SKEW, "quick"))
    assert [*table] == ["Digits (quick)", "CIFAR-10 (the paper's scale)"]
    quick, paper = (table[name] for name in table)
    assert quick["clients"] == "20" and paper["clients"] == "100"
    assert paper["rounds"] == "2000" and (quick["seeds"], paper["seeds"]) == ("2", "")
    assert paper["network"].startswith("LeNet(") and paper["parameters"] == "443,306"
    assert quick["examples, training + test"] == "1,437 + 360"
    assert paper["server's optimiser"] == "Adam, rate 0.001"


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


def test_source_is_the_code_that_runs_with_its_comments():
    told = source(FedProx.loss, FedMix.loss).data
    start = '# fedlib.algorithms.drift: FedProx.loss\n@uses_precomputed("precompute")\ndef loss('
    assert told.startswith(f"```python\n{start}")
    assert "self.mu / 2" in told and "FedMix.loss" in told and '"""' not in told
    assert "batch.y)  # log p(y|x, z)" in told
    assert "    # Return the negative bound of eq. 6, or of eq. 3, on one client's mini" in told
