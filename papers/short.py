"""In short: what notebooks open with, and README's table, in sentences whose numbers are computed.

`papers/short.csv` has the sentences, written by hand: what a paper says, what was found on real
data, how sure that is, and what came out in a line. Brackets in them are filled from the stored
results of the standard scale, by the claims that notebooks test:

    [[section/dataset | claim | rival]]  "beats RIVAL by 1.8 points (95% CI 0.9 to 2.6, 3 seeds)",
                                         or trails it, or does not differ clearly, or no runs yet
    [[section/dataset | claim | +]]      the signed number and its interval, as in README
    [[section/dataset | claim]]          the number, its interval and its seeds
    [[section/dataset]]                  how many seeds, and rounds beside the paper's
    [[finding | number]]                 a number of `papers.findings`
    [[scorecard]]                        how many claims and numbers have which verdict

``claim`` is how its text begins; "..." in it stands for anything. No sentence takes a side by
itself, so that none is wrong when runs are added. `python -m papers.short` writes README's table.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache

import pandas as pd
from IPython.display import Markdown

from companion import scorecard
from companion.claims import ELSEWHERE, FAILS, HOLDS, OPEN, TESTED, UNTESTED, Claim
from companion.panels import Panel, stored
from companion.scorecard.page import AGREES, OTHER
from fedlib import paths
from papers import comparison, findings
from papers.adaptive import analysis as clusters
from papers.adaptive import claims as adaptive
from papers.book import BOOK
from papers.fedmix import analysis as fedmix_analysis
from papers.fedmix import claims as fedmix
from papers.pm_moe import analysis as pm_moe_analysis
from papers.pm_moe import claims as pm_moe
from papers.published import published, words
from papers.specialists import analysis as two_experts
from papers.specialists import claims as specialists

FIELD = re.compile(r"\[\[([^\]]+)\]\]")
README = paths.ROOT / "README.md"
MARKS = "<!-- made by python -m papers.short -->", "<!-- end -->"
LINES = {"says": "The paper says", "found": "Found here", "sure": "How sure"}


def _scores(panel: Panel) -> pd.DataFrame:
    return two_experts.scores(panel.frame, panel.setting.tested)  # type: ignore[attr-defined]


def _clusters(panel: Panel) -> list[Claim]:
    seeds = sorted(panel.frame["seed"].unique().tolist())
    return fedmix.cluster_claims(panel.frame, fedmix_analysis.truth(panel.setting.task, seeds))


def _label_skew(panel: Panel) -> list[Claim]:
    rate = panel.setting.phi_rate
    diverge = fedmix.divergence_claims(panel.frame)
    return [*diverge, *fedmix.specialisation_claims(panel.frame, rate)]


def _new_clients(panel: Panel) -> list[Claim]:
    frame = panel.frame
    return [*fedmix.new_client_claims(frame, "appendix"), *fedmix.joining_claims(frame, 10)]


def _fourteen(panel: Panel) -> list[Claim]:
    printed = pm_moe_analysis.printed("Table 1", panel.dataset)
    return pm_moe.fourteen_claims(pm_moe_analysis.scores(panel.frame), printed)


def _gates(panel: Panel) -> list[Claim]:
    return pm_moe.gate_claims(pm_moe_analysis.scores(panel.frame), panel.setting)  # type: ignore[arg-type]


# How the notebooks judge a section's runs.
CLAIMS: dict[str, Callable[[Panel], Sequence[Claim]]] = {
    "label_skew": _label_skew,
    "communication": lambda p: fedmix.communication_claims(p.frame, p.dataset),
    "ablation": lambda p: fedmix.ablation_claims(p.frame),
    "rotated": lambda p: fedmix.rotated_claims(p.frame, p.dataset),
    "permuted": _clusters,
    "new_clients": _new_clients,
    "privacy": lambda p: fedmix.privacy_claims(p.frame),
    "specialists": lambda p: specialists.generalisation_claims(_scores(p)),
    "opt_out": lambda p: specialists.opt_out_claims(_scores(p)),
    "adaptive": lambda p: adaptive.adaptive_claims(clusters.scores(p.frame)),
    "adaptive_rotated": lambda p: adaptive.recovery_claims(p.frame),
    "adaptive_writers": lambda p: adaptive.writer_claims(p.frame),
    "fourteen": _fourteen,
    "private_parts": lambda p: pm_moe.mixture_claims(p.frame),
    "gates": _gates,
    "every_method": lambda p: comparison.leaderboard_claims(comparison.standings(p.frame)),
}


@cache
def _panels(section: str) -> dict[str, Panel]:
    """Return what is stored of a section at the standard scale, by data set."""
    every = stored(BOOK.sections[section], [], findings.SCALE, partly=True)
    return {panel.dataset: panel for panel in every}


@cache
def _claims(section: str, dataset: str) -> Sequence[Claim]:
    panel = _panels(section).get(dataset)
    return CLAIMS[section](panel) if panel else ()


def filled(sentence: str) -> str:
    """Return a sentence with its brackets filled; ValueError for one that names no one claim."""
    return FIELD.sub(lambda m: _field(*(part.strip() for part in m[1].split("|"))), sentence)


def _field(where: str, start: str = "", rival: str = "") -> str:
    if where == "scorecard":
        return line()
    section, _, dataset = where.partition("/")
    if not dataset:
        return str(findings.NUMBERS[where]()[start])
    if not start:
        return _size(section, dataset)
    found = list(_claims(section, dataset))
    if found:
        pattern = ".*".join(map(re.escape, start.split("...")))
        found = [claim for claim in found if re.match(pattern, claim.text)]
        if len(found) != 1:
            raise ValueError(f"{where}: {len(found)} claims begin with {start!r}")
    claim = found[0] if found else Claim(start, "", "", UNTESTED, 0)
    return short(claim) if rival == "+" else told(claim, rival)


def _size(section: str, dataset: str) -> str:
    panel, theirs = _panels(section).get(dataset), BOOK.sections[section].settings("paper")
    if panel is None:
        return "no runs of this are stored yet"
    seeds = panel.frame.groupby("method")["seed"].nunique()
    many = f"{seeds.min()} to {seeds.max()}" if seeds.min() < seeds.max() else f"{seeds.max()}"
    rounds = panel.setting.rounds
    whole = f" of the paper's {theirs[dataset].rounds:,}" if dataset in theirs else ""
    return f"{many} {'seed' if many == '1' else 'seeds'}, {rounds:,}{whole} rounds"


def _known(claim: Claim) -> bool:
    """Return whether a claim has a number that may be shown."""
    return claim.verdict in (*TESTED, ELSEWHERE) and claim.low <= claim.high


def told(claim: Claim, rival: str = "") -> str:
    """Return a claim's number in words, or with a ``rival`` what follows a subject."""
    if not _known(claim):
        why = f"{claim.seeds} of 3 seeds" if 0 < claim.seeds < 3 else "not trained here yet"
        return f"is not compared with {rival} ({why})" if rival else f"an unknown number ({why})"
    low, high = claim.low, claim.high
    if not rival:
        return f"{_number(claim.effect, claim)} ({_interval(low, high, claim)})"
    if low > 0:
        return f"beats {rival} by {_number(claim.effect, claim)} ({_interval(low, high, claim)})"
    if high < 0:
        return (
            f"trails {rival} by {_number(-claim.effect, claim)} ({_interval(-high, -low, claim)})"
        )
    number = f"{_number(claim.effect, claim, '+')}, {_interval(low, high, claim)}"
    return f"does not differ clearly from {rival} ({number})"


def short(claim: Claim) -> str:
    """Return a claim's signed number and interval, or that there is none."""
    if not _known(claim):
        return "not trained here yet" if claim.seeds == 0 else f"too few seeds ({claim.seeds})"
    sign = "+" if claim.unit else ""
    digits = 1 if claim.unit else 2
    ends = f"[{claim.low:.{digits}f}, {claim.high:.{digits}f}]"
    return f"{_number(claim.effect, claim, sign)} {ends}"


def _number(value: float, claim: Claim, sign: str = "") -> str:
    return f"{value:{sign}.1f} {claim.unit}" if claim.unit else f"{value:{sign}.2f}"


def _interval(low: float, high: float, claim: Claim) -> str:
    digits = 1 if claim.unit else 2
    return f"95% CI {low:.{digits}f} to {high:.{digits}f}, {claim.seeds} seeds"


def in_short(notebook: str) -> Markdown:
    """Return the three sentences that a notebook opens with."""
    row = words("short.csv", "name")[notebook]
    head = {**LINES, "says": row["who"] or LINES["says"]}
    return Markdown("\n\n".join(f"**{head[name]}.** {filled(row[name])}" for name in LINES))


def table() -> str:
    """Return README's table of notebooks: question, paper, and what came out on which data."""
    lines = ["| notebook | question | what came out |", "|---|---|---|"]
    for name, row in words("short.csv", "name").items():
        (file,) = (paths.ROOT / "notebooks").glob(f"{name}_*.ipynb")
        link = f"[{file.stem.replace('_', ' ')}](notebooks/{file.name})"
        lines.append(f"| {link}<br>{row['where']} | {row['asks']} | {filled(row['out'])} |")
    return "\n".join(lines)


def line() -> str:
    """Return how many claims and published numbers were judged, and with which verdicts."""
    claims, total = scorecard.collected(), len(published().query("repeats < 0"))
    claims = claims[claims["counted"]]
    held, fails, open_ = (int(claims["verdict"].eq(v).sum()) for v in (HOLDS, FAILS, OPEN))
    measured = pd.read_csv(paths.ROOT / "figures" / findings.SCALE / "16_agreement.csv")["verdict"]
    return (
        f"Of {held + fails + open_} claims tested on the papers' data {held} hold, {fails} do not "
        f"hold and {open_} are undecided. Of {total} published numbers {len(measured)} were "
        f"measured: {(measured != OTHER).sum()} at their own scale, of which "
        f"{(measured == AGREES).sum()} agree, and the others in smaller settings, where only the "
        "order of methods is compared."
    )


def written(text: str) -> str:
    """Return README's text with what stands between the marks made anew."""
    parts = iter((line(), table()))
    begin, end = map(re.escape, MARKS)
    fill = f"{MARKS[0]}\n{{}}\n{MARKS[1]}"
    return re.sub(f"{begin}.*?{end}", lambda _: fill.format(next(parts)), text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
    print(README)
