"""The methods that notebooks build from nothing end with the numbers of the library."""

import ast
import json
import re

import pytest

from fedlib import paths

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
