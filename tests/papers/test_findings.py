"""What a notebook ends with: three sentences, at the largest scale at which it tested something."""

import pandas as pd

from companion import claims
from papers import findings

RUNS = {s: 0.6 + 0.01 * s for s in range(3)}


def of_gain(gain, where="CIFAR-10 (standard)", text="a beats b"):
    b = {s: v - gain - 0.001 * s for s, v in RUNS.items()}
    return claims.table({where: [claims.judge(text, "Fig. 1", RUNS, b)]})


def test_a_notebook_ends_with_what_was_learned_at_the_largest_scale(monkeypatch):
    other = of_gain(-0.05, text="b beats a")
    both = pd.concat([of_gain(0.05), of_gain(-0.05, "Digits (quick)"), other], ignore_index=True)
    rows = {"01": {"says": "a is better.", "claim": "a be"}, "02": {"says": "", "claim": "c"}}
    monkeypatch.setattr(findings, "words", lambda *table: rows)
    told = findings.learned("01", both).data.split("\n\n")
    assert told[0] == "**The paper says** a is better."
    assert told[1] == "**Found:** “a beats b” holds on CIFAR-10 (standard)."
    assert "+5.1 points" in told[2]
    assert "from 3 seeds, which can detect a difference of 0.33 points." in told[2]
    assert "does not hold on Digits (quick)" in findings.learned("01", both[1:]).data
    assert findings.learned("02", both).data.endswith("**Found:** nothing yet.")
