"""The examples run as they stand, in a store of their own, and do what they say."""

import re
import runpy
import sys

import pytest

from fedlib import paths

EXAMPLES = sorted((paths.ROOT / "examples").glob("*.py"))
SAID = {
    "first": r"round 0: accuracy 0\.\d+\nround 10: accuracy (0\.\d+)\nround 20: accuracy 0\.\d+",
    "algorithm": r"FedAvg: (0\.\d+) \(.*\), 3 seeds\ndecayed: 0\.\d+ ",
    "network": r"accuracy (0\.\d+)\nClassifier of \d+ parameters\nexported with outputs \[2, 10\]",
    "own_data": r"cellar 2 on new bottles: (\d\.\d+), balanced .*\n\[\[",
    "sweep": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs_and_learns(file, places, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(file), str(tmp_path / "figure.png")])
    found = runpy.run_path(str(file), run_name="example")
    told = re.match(SAID[file.stem], capsys.readouterr().out)
    assert told and all(float(accuracy) > 0.3 for accuracy in told.groups())
    assert ("figure" in found) == (tmp_path / "figure.png").is_file()
