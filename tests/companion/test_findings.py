"""Sentences of findings: their numbers come from results, and wrong ones are refused."""

import pandas as pd
import pytest

from companion import claims
from companion.claims import FAILS, HOLDS
from companion.findings import Finding, Unsupported, learned, write

RUNS = {s: 0.6 + 0.01 * s for s in range(3)}


def of_gain(gain, where="CIFAR-10 (standard)"):
    b = {s: v - gain - 0.001 * s for s, v in RUNS.items()}
    return claims.table({where: [claims.greater("a beats b", "Fig. 1", RUNS, b)]})


def test_a_sentence_has_its_numbers_and_is_refused_when_they_change(tmp_path):
    known = {"gain": 3.25}
    one = Finding(
        "It gains {gain:.1f} points.", lambda: known, lambda of: of["gain"] > 1, "02_x", "y.png"
    )
    path = write([one], "# Findings", tmp_path / "FINDINGS.md")
    before = path.read_text()
    assert before.startswith("# Findings\n")
    assert before.endswith(
        "\n\n- It gains 3.2 points. ([figure](figures/y.png), [notebook](notebooks/02_x.ipynb))\n"
    )
    known["gain"] = 0.5
    with pytest.raises(Unsupported, match=r"no longer support 'It gains .*gain = 0\.5"):
        write([one], "# Findings", path)
    assert path.read_text() == before


def test_a_notebook_ends_with_what_was_learned_at_the_largest_scale():
    both = pd.concat([of_gain(0.05), of_gain(-0.05, "Digits (quick)")], ignore_index=True)
    found = {HOLDS: "It does, by {effect:.1f} points.", FAILS: "It does not."}
    told = learned(both, "a is better.", "a beats b", found).data.split("\n\n")
    assert told[0] == "**The paper says** a is better."
    assert told[1] == "**Found:** It does, by 5.1 points."
    assert "from 3 seeds, which can detect a difference of 0.33 points." in told[2]
    with pytest.raises(Unsupported, match="no sentence for 'a beats b', which is 'holds'"):
        learned(both, "", "a beats b", {FAILS: ""})
    with pytest.raises(Unsupported, match="nothing tests 'c'"):
        learned(both, "", "c", found)
