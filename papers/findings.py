"""What was found, in sentences whose numbers are computed: `python -m papers.findings`.

That writes FINDINGS.md, and README's table and line. `papers/short.csv` has what notebooks open
with, and what came out in a line.

`papers/findings.csv` has the sentences, of which the functions here compute the numbers from
stored results, by the claims that notebooks test. A sentence that the numbers no longer support is
an error and not a sentence; where its runs are not stored, the column ``unknown`` has what stands
instead, if anything. Brackets are filled as in `papers.short`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown
from scipy import stats

from companion import frames, scorecard
from companion.claims import FAILS, HOLDS, OPEN, TESTED, UNTESTED, UNTRAINED, Claim, judge
from companion.panels import Panel, stored
from companion.scorecard.page import AGREES, OTHER
from companion.sections import Section
from fedlib import paths
from fedlib.metrics import interval
from fedlib.runs import atomic
from papers.adaptive import claims as adaptive
from papers.adaptive.experiments import ADAPTIVE_WRITERS
from papers.fedmix import ENSEMBLE, FEDMIX
from papers.fedmix import claims as fedmix
from papers.fedmix.experiments import LABEL_SKEW, LONG, NEW_CLIENTS, PRIVACY
from papers.judging import by, scored
from papers.pm_moe import NINE, TRADITIONAL, analysis
from papers.pm_moe import claims as pm_moe
from papers.pm_moe.experiments import PRIVATE_PARTS
from papers.published import published, words
from papers.scaled import FEDAVG
from papers.short import SCALE, filled
from papers.specialists import analysis as two_experts
from papers.specialists import claims as specialists
from papers.specialists import experiments as stages

README = paths.ROOT / "README.md"
MARKS = "<!-- made by python -m papers.findings -->", "<!-- end -->"
LINES = {"says": "The paper says", "found": "Found here", "sure": "How sure"}
HEAD = """# What was found

Numbers come from stored runs of the standard scale, with fewer rounds and smaller networks than
the papers', if no other is named, or from the papers' tables. Brackets hold 95% intervals over
seeds, and the number of seeds. `python -m papers.findings` writes this page, and fails if a number
no longer supports its sentence.
"""
Claims = Mapping[str, Sequence[Claim]]
Numbers = dict[str, object]


class Unsupported(ValueError):
    """A sentence that its numbers no longer bear out."""


class Missing(LookupError):
    """The runs behind a sentence are not stored, or of too few seeds."""


def number(claim: Claim, *wanted: str, sign: int = 1) -> str:
    """Return a claim's number, interval and seeds in words, or their negative; with a sign if open.

    Unsupported if its verdict is none of those ``wanted``, Missing if it was not tested.
    """
    if claim.verdict in (UNTESTED, UNTRAINED):
        raise Missing(claim.text)
    if claim.verdict not in wanted:
        told = f"{claim.text!r} {claim.verdict}: {claim.measured}"
        raise Unsupported(f"{told}; the sentence says it {' or '.join(wanted)}")
    low, high = sorted(sign * end for end in (claim.low, claim.high))
    digits, plus = (1, "+" * (OPEN in wanted)) if claim.unit else (2, "")
    mean = f"{sign * claim.effect:{plus}.{digits}f} {claim.unit}".strip()
    return f"{mean} [{low:.{digits}f}, {high:.{digits}f}; {claim.seeds} seeds]"


def starting(claims: Sequence[Claim], start: str) -> Claim:
    """Return the claim whose text starts so; ValueError unless there is one."""
    (one,) = (c for c in claims if c.text.startswith(start))
    return one


def _panels(section: Section) -> dict[str, Panel]:
    """Return what is stored of a section, by data set; Missing if that is nothing."""
    if found := {p.dataset: p for p in stored(section, [], SCALE)}:
        return found
    raise Missing(section.name)


def _each(section: Section, judge: Callable[[Panel], Sequence[Claim]]) -> Claims:
    panels = _panels(section).values()
    return {panel.name.removesuffix(f" ({SCALE})"): panel.claims(judge) for panel in panels}


def _told(claims: Claims, start: str, *wanted: str) -> str:
    """Return the numbers of a claim on every data set, as in "-1.2 points [-3.0, 1.0] on MNIST"."""
    return ", ".join(f"{number(starting(c, start), *wanted)} on {of}" for of, c in claims.items())


def _floor() -> Numbers:
    table = analysis.beside_floor()
    here = table[table["dataset"].eq("cifar10") & table["S"].eq(0)].set_index("method")
    lost = [m for m in here.index if here.loc[m, "value"] < here.loc[m, "floor"]]
    if set(lost) != set(TRADITIONAL):
        raise Unsupported(f"below the floor of 004's CIFAR-10: {lost}")
    fedavg, floor = (100 * here.loc[[FEDAVG], ["value", "floor"]]).to_numpy()[0]
    said = {"floor": f"{floor:.1f}", "fedavg": f"{fedavg:.1f}", "points": f"{floor - fedavg:.1f}"}
    return {**said, "lost": len(lost), "nine": len(NINE)}


def _small_experts() -> Numbers:
    judge = specialists.architecture_claims
    claims = _each(stages.ARCHITECTURES, lambda panel: judge(two_experts.of_panel(panel)))
    start = "A small specialist and a tiny gate beat FedAvg on the "
    own, general = _told(claims, f"{start}local", HOLDS), _told(claims, f"{start}global", FAILS)
    return {"own": own, "general": general}


def _last_client() -> Numbers:
    released, plain = (
        two_experts.of_panel(_panels(section)["cifar10"])
        for section in (stages.AS_RELEASED, stages.SPECIALISTS)
    )
    last = released[released["departure"] == stages.LAST_CLIENT]
    ps = last["p"].unique().tolist()
    theirs, average = (by(rows, metric=two_experts.GLOBAL)(FEDAVG, p=ps) for rows in (last, plain))
    lost = judge("The average beats the last client's model", "", average, theirs)
    return {"lost": number(lost, HOLDS)}


def _own_scale() -> Numbers:
    panels = {p.dataset: p for p in stored(stages.FIRST_VERSION, [], "paper")}
    if "cifar10" not in panels:
        raise Missing("the first version at its own scale")
    panel = panels["cifar10"]
    table = _beside_table_1(panel)
    agree = scorecard.judged(table).eq(AGREES)
    gaps = (table["value"] - table["mean"])[~agree]
    if not agree[table["method"].eq(FEDAVG)].all() or gaps.min() < 0:
        raise Unsupported(f"FedAvg does not agree, or a number is larger here: {table}")
    judge = specialists.first_version_claims
    claims = panel.claims(lambda panel: judge(two_experts.of_panel(panel)))
    alone, tuned = (
        starting(claims, f"q = 0: the mixture beats {what}")
        for what in ("training alone", "fine-tuning")
    )
    said: Numbers = {
        "agree": int(agree.sum()),
        "numbers": len(table),
        "seeds": int(table["seeds"].max()),
    }
    said |= {"least": f"{gaps.min():.1f}", "most": f"{gaps.max():.1f}", "differ": len(gaps)}
    return {**said, "alone": number(alone, *TESTED), "tuned": number(tuned, HOLDS)}


def _beside_table_1(panel: Panel) -> pd.DataFrame:
    """Return what 002 prints in Table 1 and a panel's means, as `scorecard.judged` takes them."""
    scores, printed, at = two_experts.of_panel(panel), two_experts.printed("002"), ["method", "p"]
    here = two_experts.at_q(scores[scores["metric"] == two_experts.HELD], 0.0)
    theirs = published("002", "Table 1").set_index("row")[["value", "std"]]
    table = printed[printed["data"] == panel.dataset][[*at, "row"]].join(theirs, on="row")
    values = here.groupby(at)["value"].apply(lambda of: (*interval(of, limits=(0, 1)), len(of)))
    names = ["mean", "low", "high", "seeds"]
    found = pd.DataFrame([*values], index=values.index, columns=names)
    found[names[:3]] *= 100
    marks = {"diverged": False, "untrained": False, "same": True, "at_hand": True}
    return table.join(found, on=at, how="inner").assign(why_not="", **marks)


def _too_small() -> Numbers:
    rows = published("001", "Table 1e")
    rows = rows.assign(p=rows["setting"].str.extract(r"p=([\d.]+)")[0])
    printed, rescaled = (
        rows[rows["metric"].str.startswith("global") & rows["metric"].str.endswith(end)]
        for end in ("accuracy", "DERIVED")
    )
    both = printed.merge(rescaled, on=["method", "p"], suffixes=("", "_rescaled"))
    factors = both["value_rescaled"] / both["value"]
    if not (factors.between(7.5, 7.7).all() and both["value"].lt(25).all()):
        raise Unsupported(f"Table 1e: {both}")
    low, high = both["value"].agg(["min", "max"])
    return {"count": len(both), "least": f"{low:g}", "most": f"{high:g}"}


@cache
def _of_writers() -> Sequence[Claim]:
    claims = _each(ADAPTIVE_WRITERS, lambda panel: adaptive.writer_claims(panel.frame))
    return next(iter(claims.values()))


def _writers() -> Numbers:
    number(starting(_of_writers(), "Exploration makes the mixture better"), FAILS)
    one = starting(_of_writers(), "Exploration makes writers more alike")
    return {"spread": number(one, FAILS, sign=-1)}


def _divergence() -> Numbers:
    panel = _panels(LABEL_SKEW)["cifar10"]
    frame, (less, grows) = panel.frame, panel.judged(fedmix.divergence_claims)
    mean = scored(fedmix.late(frames.divergence(frame)), method=FEDAVG)
    return {
        "less": number(less, HOLDS),
        "grows": number(grows, HOLDS),
        "mean": f"{np.mean([*mean.values()]):.2f}",
        "rounds": fedmix.final_rounds(frame),
    }


def _joining() -> Numbers:
    panel = _panels(NEW_CLIENTS)["two_class_mnist"]
    claims = panel.judged(fedmix.new_client_claims, "appendix")
    claims += panel.judged(fedmix.joining_claims, 10)
    starts = {
        "seen": "FedMix beats FedAvg on p",
        "new": "On a new",
        "fits": "A new client with",
    }
    lost = starting(claims, "Without a gate")
    number(lost, FAILS)
    right = f"{lost.effect / 10:.1%} [{lost.low / 10:.1%}, {lost.high / 10:.1%}]"
    said = {name: number(starting(claims, text), HOLDS) for name, text in starts.items()}
    return {**said, "right": right}


def _energies(dimensions: int = 512, experts: int = 20, clients: int = 50) -> Numbers:
    draw = np.random.default_rng(0)
    own, near = draw.normal(size=(clients, 1, dimensions)), draw.normal(size=(clients, experts, 1))
    said = near * own + draw.normal(size=(clients, experts, dimensions))
    norms = np.linalg.norm(said, axis=-1) * np.linalg.norm(own, axis=-1)
    v = said * own / norms[..., None]
    energies, cosines = np.logaddexp.reduce(v, axis=-1), v.sum(-1)
    same = [float(stats.spearmanr(*pair).statistic) for pair in zip(energies, cosines, strict=True)]
    number(judge("Denoising at T = 1 orders by a cosine", "", same, 0.99), HOLDS)
    constant, spread = f"{np.log(dimensions):.2f}", f"{energies.std(1).mean():.4f}"
    found = {"same": f"{np.mean(same):.4f}", "constant": constant, "spread": spread}
    return {**found, "clients": clients, "dimensions": dimensions}


def _equal_size() -> Numbers:
    panel = next(iter(_panels(LONG).values()))
    at = by(frames.ended(panel.frame, "test_accuracy"))
    word = {HOLDS: "is ahead of", FAILS: "is behind", OPEN: "cannot be told from"}
    size, own = (judge("", "", at(FEDMIX), at(other)) for other in (FEDAVG, ENSEMBLE))
    said = {"size": number(size, *TESTED), "ensemble": number(own, *TESTED)}
    said |= {"large": word[size.verdict], "own": word[own.verdict]}
    return {**said, "rounds": f"{fedmix.final_rounds(panel.frame):,}"}


def _label_sets() -> Numbers:
    frame = next(iter(_panels(PRIVACY).values())).frame
    if not len(wrong := fedmix.wrong_sets(frame)):
        raise Missing("label sets")
    if wrong.any():
        raise Unsupported(f"label sets read wrongly off phi: {wrong.to_dict()}")
    return {"clients": len(frame.loc[frame["client"] >= 0, ["seed", "client"]].drop_duplicates())}


def _gains() -> Numbers:
    claims = _each(PRIVATE_PARTS, lambda panel: pm_moe.mixture_claims(panel.frame, panel.diverged))
    gain = _told(claims, "PM-MoE improves on its first stage (mean of 9, S = 0)", *TESTED)
    return {"gain": gain, "chosen": _told(claims, "Reporting the largest", *TESTED)}


_FUNCTIONS: tuple[Callable[[], Numbers], ...] = (
    _floor, _own_scale, _last_client, _too_small, _small_experts, _writers,
    _divergence, _joining, _energies, _equal_size, _label_sets, _gains,
)  # fmt: skip
_KNOWN: dict[str, Callable[[], Numbers]] = {"scorecard": lambda: {"line": line()}}
NUMBERS = {of.__name__.strip("_").replace("_", " "): of for of in _FUNCTIONS}
_KNOWN |= NUMBERS


def page() -> str:
    """Return what was found as Markdown: those sentences whose runs are stored.

    Unsupported if stored results contradict one.
    """
    parts = [HEAD.strip()]
    for name, row in words("findings.csv", "name").items():
        try:
            said = filled(row["sentence"].format(**NUMBERS.get(name, dict)()), _KNOWN)
        except Missing:
            said = row["unknown"]
        links = [f"[figure]({row['figure']}.png)"] if row["figure"] else []
        links.append(f"[notebook](notebooks/{row['notebook']}.ipynb)")
        parts += [f"- {said} ({', '.join(links)})"] * bool(said)
    return "\n\n".join(parts) + "\n"


def in_short(notebook: str) -> Markdown:
    """Return the three sentences that a notebook opens with."""
    row = words("short.csv", "name")[notebook]
    head = {**LINES, "says": row["who"] or LINES["says"]}
    lines = {name: filled(row[name], _KNOWN) for name in LINES}
    return Markdown("\n\n".join(f"**{head[n]}.** {t[:1].upper()}{t[1:]}" for n, t in lines.items()))


def table() -> str:
    """Return README's table of notebooks: question, paper, and what came out on which data."""
    lines = ["| notebook | question | what came out |", "|---|---|---|"]
    for name, row in words("short.csv", "name").items():
        (file,) = (paths.ROOT / "notebooks").glob(f"{name}_*.ipynb")
        link = f"[{file.stem.replace('_', ' ')}](notebooks/{file.name})"
        lines.append(f"| {link}<br>{row['where']} | {row['asks']} | {filled(row['out'], _KNOWN)} |")
    return "\n".join(lines)


def line() -> str:
    """Return how many claims and published numbers were judged, and with which verdicts."""
    claims, total = scorecard.collected(), len(published().query("repeats < 0"))
    claims = claims[claims["counted"]]
    held, fails, open_ = (int(claims["verdict"].eq(v).sum()) for v in (HOLDS, FAILS, OPEN))
    measured = pd.read_csv(paths.ROOT / "figures" / SCALE / "16_agreement.csv")["verdict"]
    small = int(measured.eq(OTHER).sum())
    full = len(measured) - small - int(measured.eq(UNTRAINED).sum())
    agree = f", where {(measured == AGREES).sum()} agree" if full else ""
    return (
        f"Of {held + fails + open_} claims tested on the papers' data {held} hold, {fails} do not "
        f"hold and {open_} are undecided. Of {total} published numbers {full} were measured at "
        f"their own scale{agree}; {small} in smaller settings, where only the order "
        "of methods can be compared."
    )


def written(text: str) -> str:
    """Return README's text with what stands between the marks made anew."""
    parts = iter((line(), table()))
    begin, end = map(re.escape, MARKS)
    fill = f"{MARKS[0]}\n{{}}\n{MARKS[1]}"
    return re.sub(f"{begin}.*?{end}", lambda _: fill.format(next(parts)), text, flags=re.DOTALL)


if __name__ == "__main__":
    for file, text in ((paths.ROOT / "FINDINGS.md", page()), (README, written(README.read_text()))):
        atomic.write(file, partial(Path.write_text, data=text), "the findings")
        print(file)
