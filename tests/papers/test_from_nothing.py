"""The methods that notebooks build from nothing end with the numbers of the library.

The answers to the notebooks' questions are the results of the programs that the questions change.
"""

import ast
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from companion import frames
from fedlib import paths
from fedrun import Experiment, run, run_with_state
from papers.fedmix import PRUNING
from papers.fedmix.experiments import COMMUNICATION

CELLS = {
    "00_start_here": ("nothing-fedavg", 31),
    "02_specialization": ("nothing-fedmix", 31),
    "09_specialists_and_generalists": ("nothing-mixture", 31),
    "11_adaptive_experts": ("nothing-adaptive", 31),
    "13_pm_moe": ("nothing-pm-moe", 31),
}


def cells(name):
    """The code of a notebook's cells that build a method from nothing, by id, in order."""
    read = json.loads((paths.ROOT / "notebooks" / f"{name}.ipynb").read_text())
    code = {c["id"]: "".join(c["source"]) for c in read["cells"] if c["cell_type"] == "code"}
    first = next(source for source in code.values() if "use_style" in source)
    made = [n for n in ast.parse(first).body if isinstance(n, ast.Import | ast.ImportFrom)]
    imports = "\n".join(map(ast.unparse, made))
    own = {name: source for name, source in code.items() if name.startswith("nothing-")}
    before = "from papers.notebook import *\nfrom fedlib import FedAvg, FedMix\n"
    return {"imports": before + imports, **own}


def played(parts, *changed):
    """What the cells define, run in order; pairs of old and new text are changed in them first."""
    source = "\n".join(parts.values()).replace("ROUNDS = 0.1, 10, 5, 20", "ROUNDS = 0.1, 10, 5, 5")
    for old, new in changed:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    found = {}
    exec(compile(source, "cells", "exec"), found)
    return found


@pytest.mark.parametrize("name", CELLS)
def test_what_is_built_from_nothing_asserts_that_it_is_the_library(name):
    parts = cells(name)
    assert played(parts)["apart"] < 1e-6
    asserts = [n for n in ast.walk(ast.parse(parts["nothing-check"])) if isinstance(n, ast.Assert)]
    assert len(asserts) == 2


CHANGED = [
    ("00_start_here", ("sizes[s] / examples", "1 / COHORT")),
    ("02_specialization", ("torch.stack(q) * p[:, None] / (p @", "p[:, None] + 0 * (p @")),
    ("02_specialization", (" - grad(marginal_entropy)(w[n])", "")),
    ("09_specialists_and_generalists", ("(1 - h) * f_g", "f_g")),
    ("11_adaptive_experts", ("chose[choice(f, s, t)]", "chose[0]")),
    ("11_adaptive_experts", (".random() < EPS", ".random() < 0")),
    ("13_pm_moe", ("torch.where(a >= a.topk(TOP).values[:, -1:], a, 0)", "a")),
    ("13_pm_moe", ("{n: w[s][n] for n in s_l[s]}", "s_l[s]")),
]


@pytest.mark.parametrize(("name", "changed"), CHANGED)
def test_another_weight_or_a_term_less_is_noticed(name, changed):
    with pytest.raises(AssertionError, match="the same"):
        played(cells(name), changed)


def test_from_nothing_is_short_plain_torch_with_its_equations():
    for name, (cell, most) in CELLS.items():
        source = cells(name)[cell]
        used = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
        assert not used & {"federation", "play_round", "run_with_state", "FedMix", "evaluate"}
        assert sum(bool(line.strip()) for line in source.splitlines()) <= most
        assert len(re.findall(r"\((?:eq|alg)\. \d\)", source)) >= 2


def answers(name):
    """The texts of a notebook in one line."""
    read = json.loads((paths.ROOT / "notebooks" / f"{name}.ipynb").read_text())
    return " ".join(" ".join(x for c in read["cells"] for x in c["source"]).split())


def by_hand(*changed):
    """The accuracy of the program of notebook 00, round by round, without comparison."""
    parts = {name: code for name, code in cells("00_start_here").items() if "check" not in name}
    return np.array(played(parts, ("1, 10, 5, 5", "1, 10, 5, 20"), *changed)["by_hand"])


@pytest.mark.slow
def test_the_answers_of_00_are_results_of_its_programs():
    """The numbers may differ by a little: other processors round differently."""
    told, usual = answers("00_start_here"), by_hand()
    every = by_hand(("COHORT, ROUNDS = 0.1, 10, 5", "COHORT, ROUNDS = 0.1, 10, 20"))
    assert "Seven rounds in place of twelve" in told
    assert (every > 0.85).argmax() == pytest.approx(7, abs=1)
    assert (usual > 0.85).argmax() == pytest.approx(12, abs=1)
    assert "At 0.3 accuracy stays near 0.6; at 0.5 it stays at that of guessing" in told
    large, too_large = (by_hand(("ROUNDS = 0.1", f"ROUNDS = {a}")) for a in (0.3, 0.5))
    assert 0.5 < large[10:].mean() < 0.65 and too_large.max() < 0.2
    assert "0.55 in place of 0.22 after two rounds. After 20 rounds both are at 0.89" in told
    twice = by_hand(
        ("client(w, int(s), t), sizes", "client(client(w, int(s), t), int(s), t), sizes")
    )
    ends = [twice[2], usual[2], twice[20], usual[20]]
    assert ends == pytest.approx([0.55, 0.22, 0.89, 0.89], abs=0.02)


@pytest.mark.slow
def test_the_answers_of_02_are_results_of_its_programs():
    parts = cells("02_specialization")
    parts["nothing-check"] = parts["nothing-check"].partition("begin =")[0]
    made, q, accuracy = played(parts), {}, {}
    for name, changed in (
        ("usual", {}),
        ("free", {"marginal_entropy": 0.0}),
        ("ensemble", {"objective": "entropy"}),
        ("ten", {"experts": 10}),
    ):
        tried = Experiment(made["unequal"], replace(made["mix"], **changed), 20, 5)
        result, state = run_with_state(tried, progress=False)
        q[name] = state.server_params["phi"].softmax(1).numpy()
        accuracy[name] = result.curve("test_accuracy")[20]
    told = answers("02_specialization")
    assert "expert 0 is left without a label that prefers it, and another has 0.43 of all" in told
    assert 0 not in q["free"].argmax(1)
    assert "entries lie between 0.12 and 0.34. Accuracy is 0.80 in place of 0.76" in told
    assert "no entry exceeds 0.23, and accuracy is 0.60" in told
    found = [q["free"].mean(0).max(), q["ensemble"].min(), q["ensemble"].max(), q["ten"].max()]
    assert found == pytest.approx([0.43, 0.12, 0.34, 0.23], abs=0.02)
    found = [accuracy[name] for name in ("ensemble", "usual", "ten")]
    assert found == pytest.approx([0.80, 0.76, 0.60], abs=0.02)


@pytest.mark.slow
def test_the_answers_of_03_are_results_of_its_programs():
    (mine,), found = COMMUNICATION.experiments("quick", "digits", PRUNING, seeds=1), {}
    mix = replace(mine.algorithm, experts=4, eta=0.0, epochs=1)
    for changed in ({}, {"experts": 2}, {"eta": 0.9}, {"epochs": 2}):
        tried = replace(mine, algorithm=replace(mix, **changed))
        rows = frames.together([("mine", {}, [run(tried, progress=False)])])
        table = frames.against_traffic(rows, "test_accuracy").set_index("round")
        found["".join(changed)] = table[["gigabytes", "value"]]
    ends = {name: table.loc[120] for name, table in found.items()}
    told = answers("03_performance_vs_communication")
    assert "None is lost: 0.94 in place of 0.90" in told
    assert "36% of the bytes are saved; accuracy is 0.89 in place of 0.90" in told
    assert "0.90 after 30 rounds in place of 120" in told
    early = found["epochs"].loc[30, "value"]
    values = [*(ends[name]["value"] for name in ("experts", "", "eta")), early]
    assert values == pytest.approx([0.94, 0.90, 0.89, 0.90], abs=0.02)
    sent = ends["eta"]["gigabytes"] / ends[""]["gigabytes"]
    assert 1 - sent == pytest.approx(0.36, abs=0.02)
