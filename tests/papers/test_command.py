"""`python -m papers`: commands hand on what they are told, wrong words are answered."""

import re
from unittest.mock import Mock

import pytest
from cases import refused
from conftest import alone

from fedrun import StoreError
from papers.__main__ import app, main
from papers.registry import REGISTRY

HOW = {"device": "auto", "workers": 1, "blocks": [], "plan": False, "address": None}


def test_every_command_explains_itself(capsys):
    for command in (c.callback.__name__ for c in app.registered_commands):
        assert main([command, "--help"]) == 0
        assert f"python -m papers {command}" in capsys.readouterr().out
    assert main([]) == 2  # as every tool that is asked nothing


GIVEN = "campaign --section gates@2 --section long --block 2 --workers 4 --address auto"
TOLD = HOW | {"workers": 4, "blocks": [2], "address": "auto"}


HANDED = [
    ("notebooks --only 07", "companion.notebooks.refresh", ("07", 0), {}),
    (GIVEN, "companion.plan.campaign", (REGISTRY, "", ["gates@2", "long"]), TOLD),
    ("results", "companion.results.main", (REGISTRY, "standard"), {}),
    ("report", "papers.told.main", (), {}),
]


@pytest.mark.parametrize(("arguments", "where", "asked", "how"), HANDED)
def test_a_command_hands_on_what_it_was_told(monkeypatch, arguments, where, asked, how):
    heard = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    module, _, name = where.rpartition(".")
    monkeypatch.setattr(f"{module}.{name}", lambda *a, **k: heard.append((a, k)) or 3)
    command, *_ = words = arguments.split()
    code = main(words)
    assert heard == [(asked, how)] and code == (3 if command == "results" else 0)


WITHOUT = "nbformat", "nbclient", "papermill", "IPython", "ipywidgets", "ipykernel", "jupyterlab"
TRAINS = "campaign --plan --scale quick --section gates:digits@1", "tasks 000/cifar10"


def test_what_trains_needs_no_jupyter():
    """On a machine with a GPU and nothing else, `campaign` ended with an ImportError."""
    code = f"""import sys
for name in {WITHOUT}: sys.modules[name] = None
from papers.__main__ import main
sys.exit(any(main(line.split()) for line in {TRAINS}))"""
    done = alone(code)
    assert done.returncode == 0 and "LeNet(" in done.stdout, done.stderr


@refused("papers")
def test_a_wrong_word_is_answered_by_the_nearest(capsys, code, message):
    assert main(code.split()) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and "Traceback" not in error


def test_what_fails_is_one_line_and_what_is_a_defect_is_not_hidden(monkeypatch, capsys):
    for error, code in ((StoreError("full"), 1), (ValueError("bad"), 2)):
        failing = Mock(side_effect=error)
        monkeypatch.setattr("papers.told.main", failing)
        assert main(["report"]) == code and capsys.readouterr().err == f"fedlib: {error}\n"
    monkeypatch.setattr("papers.told.main", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["report"])
