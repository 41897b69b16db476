"""What was found, in sentences whose numbers are computed: `python -m papers.findings`.

That writes docs/FINDINGS.md, README's table and line. `papers/short.csv` has what notebooks open
with, and what came out in a line.

`papers/findings.csv` has the sentences, of which the functions here compute the numbers from
stored results, by the claims that notebooks test. A sentence that the numbers no longer support is
an error and not a sentence, and so is one whose ``needs`` are not met; where its runs are not
stored, the column ``unknown`` has what stands instead, if anything. Brackets are filled as in
`papers.short`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from scipy import stats

from companion import frames, scorecard
from companion.claims import DISCOVERY, FAILS, HOLDS, OPEN, TESTED, UNTRAINED, BySeed, Claim, judge
from companion.frames import by_method
from companion.inference import LEAST_SEEDS
from companion.panels import Panel
from companion.scorecard.page import AGREES, DIFFERS, IMPRECISE, OTHER, OWN
from fedlib import paths
from fedrun import files
from papers import comparison
from papers.adaptive import analysis as clusters
from papers.adaptive.experiments import MOE
from papers.fedmix import BIAS, BY_ANGLE, BY_LABEL, ENSEMBLE, FEDMIX, with_k
from papers.fedmix import claims as fedmix
from papers.judging import by, scored
from papers.pm_moe import NINE, TRADITIONAL, WITH_MOE, analysis
from papers.published import published, words
from papers.registry import REGISTRY
from papers.scaled import FEDAVG, LOCAL, MAJORITY, TUNED
from papers.short import SCALE, Missing, Unsupported, filled, number, panels, short, starting
from papers.specialists import analysis as two_experts
from papers.specialists.experiments import LAST_CLIENT, MIXTURE, OWN_NETWORK

README = paths.ROOT / "README.md"
MARKS = "<!-- made by python -m papers.findings -->", "<!-- end -->"
LINES = {"says": "The paper says", "found": "Found here", "sure": "How sure"}
BRACKETS = " Brackets hold 95% intervals."
INTERVAL = re.compile(r"\[-?[\d.]+, ")
HEAD = """# What was found

Numbers come from stored runs of the standard scale, with fewer rounds and smaller networks than
the papers', if no other is named, or from the papers' tables. Brackets hold 95% intervals over
seeds, and the number of seeds: those of each number by itself, however many numbers there are.
What is undecided although its interval leaves 0 out may be chance among so many tests (p > {p}).
Comparisons with training alone, with a gate's absence, and with the ensemble against FedAvg and on
new clients were made after their numbers were seen. In notebooks 12 to 15 all seeds have the same
clients; some sections got more seeds after a look
([readings](READINGS.md)).
`python -m papers.findings` writes this page, and fails if a number no longer supports its sentence.
"""
_WORDS = {"agree": AGREES, "differ": DIFFERS, "are too imprecise to tell": IMPRECISE}
Numbers = dict[str, object]
Table = Callable[[Panel], pd.DataFrame]


def _panel(section: str, dataset: str, scale: str = SCALE) -> Panel:
    """Return what is stored of a section; Missing if that is nothing."""
    if found := panels(section, scale).get(dataset):
        return found
    raise Missing(section)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]


def _floor() -> Numbers:
    table = analysis.beside_floor()
    here = table[table["dataset"].eq("cifar10") & table["S"].eq(0)].set_index("method")
    lost = [m for m in here.index if here.loc[m, "value"] < here.loc[m, "floor"]]
    if set(lost) != set(TRADITIONAL):
        raise Unsupported(f"below the floor of 004's CIFAR-10: {lost}")
    fedavg, floor = (100 * here.loc[[FEDAVG], ["value", "floor"]]).to_numpy()[0]
    said = {"floor": f"{floor:.1f}", "fedavg": f"{fedavg:.1f}", "points": f"{floor - fedavg:.1f}"}
    return {**said, "lost": len(lost), "nine": len(NINE)}


def _at_own_scale(paper: str, dataset: str) -> pd.DataFrame:
    """Return what was measured of a paper's numbers at its own scale; Missing if nothing."""
    rows = _numbers_of(paper)
    rows = rows[rows["scale"].eq("paper") & rows["dataset"].eq(dataset) & ~rows["repeats"]]
    if not len(rows):
        raise Missing(f"{paper} on {dataset} at its own scale")
    return rows


@cache
def _numbers_of(paper: str) -> pd.DataFrame:
    tables = [item for item in REGISTRY.tables if item.paper == paper]
    return scorecard.numbers(replace(REGISTRY, tables=tuple(tables)))


def _own_scale() -> Numbers:
    table = _at_own_scale("002", "CIFAR-10")
    agree = table["verdict"].eq(AGREES)
    gaps = -table["gap"][~agree]
    if not agree[table["method"].eq(FEDAVG)].all() or gaps.min() < 0:
        raise Unsupported(f"FedAvg does not agree, or a number is larger here: {table}")
    said = {"agree": int(agree.sum()), "numbers": len(table), "seeds": int(table["seeds"].max())}
    return {**said, "least": f"{gaps.min():.1f}", "most": f"{gaps.max():.1f}", "differ": len(gaps)}


def _tuned(dataset: str, scale: str = SCALE) -> str:
    """Return at which p the mixture generalises better than fine-tuning, and at which worse."""
    panel, at = _panel("specialists", dataset, scale), {"metric": two_experts.GLOBAL}
    return _by_p(panel, two_experts.of_panel, MIXTURE, TUNED, **at)


def _tuning() -> Numbers:
    found = {name: _tuned(name) for name in ("cifar10", "fashion_mnist", "ag_news")}
    if not any("ahead" in told and "behind" in told for told in found.values()):
        raise Unsupported(
            f"no data set on which it is ahead at some p and behind at others: {found}"
        )
    return {**found}


def _higher() -> Numbers:
    table = _at_own_scale("001", "Fashion-MNIST")
    gaps = table["gap"][table["verdict"].eq(DIFFERS)]
    if gaps.min() < 0 or len(gaps) <= len(table) / 2:
        raise Unsupported(f"numbers are smaller here, or few differ: {table}")
    said = {"numbers": len(table), "seeds": int(table["seeds"].min()), "differ": len(gaps)}
    said |= {"agree": int(table["verdict"].eq(AGREES).sum())}
    known = two_experts.printed("001", "fashion_mnist")
    known = known[known["p"].eq(1) & known["metric"].eq(two_experts.GLOBAL)]
    theirs = 100 * known.set_index("method")["value"].astype(float)
    printed = f"{theirs[MIXTURE]:.2f} against {theirs[TUNED]:.2f}%"
    words = {"printed": printed, "tuned": _tuned("fashion_mnist", "paper")}
    return {**said, **words, **_over_p(table, gaps)}


def _own_network() -> Numbers:
    (departure,), methods = OWN_NETWORK, (FEDAVG, LOCAL, TUNED, MIXTURE)
    sides = _gaps_to_print("fashion_mnist", departure, methods)
    nearer = _nearer(*sides)
    alone = [s[s["method"].eq(LOCAL) & s["metric"].eq(two_experts.GLOBAL)] for s in sides]
    printed = alone[0].assign(value=alone[0]["value"] - alone[0]["gap"])
    tables = {"printed": printed, "alone": alone[0], "alone_released": alone[1]}
    said = {name: _ends(rows.groupby("p")["value"].mean()) for name, rows in tables.items()}
    said |= {"by": number(nearer, HOLDS), "counts_described": _counts(sides[0])}
    said |= {"counts": _counts(sides[1]), "methods": str(len(methods))}
    return {**said, **_mean_distances(*sides)}


def _counts(gaps: pd.DataFrame) -> str:
    """Return in words how many accuracies agree with print, by the rule of the scorecard."""
    points = gaps.assign(value=100 * gaps["value"], gap=100 * gaps["gap"])
    cells = ["method", "metric", "p"]
    gap = points.groupby(cells, sort=False)["gap"].mean().to_numpy()
    table = frames.bands(points, by=cells).assign(std=np.nan, why_not="")
    table["value"] = table["mean"] - gap
    table[["at_hand", "same"]], table[["diverged", "untrained"]] = True, False
    return _verdicts(scorecard.judged(table))


def _verdicts(verdicts: pd.Series) -> str:
    counts = {word: int(verdicts.eq(verdict).sum()) for word, verdict in _WORDS.items()}
    return _listed([f"{count} {word}" for word, count in counts.items() if count])


def _ends(values: pd.Series) -> str:
    return f"{100 * values.min():.1f} to {100 * values.max():.1f}%"


def _by_p(panel: Panel, table_of: Table, a: str, b: str, **at: str) -> str:
    """Return at which p a method is ahead of another, and at which behind, each p by itself."""
    ps = sorted(table_of(panel)["p"].unique())

    def judged(part: Panel) -> list[Claim]:
        there = by(table_of(part), **at)
        return [judge(f"{p:g}", "", there(a, p=p), there(b, p=p)) for p in ps]

    claims, parts = panel.claims(judged), []
    for verdict, word in ((HOLDS, "ahead"), (OPEN, "undecided"), (FAILS, "behind")):
        found = [claim for claim in claims if claim.verdict == verdict]
        where = f"{word} at p = {_listed([claim.text for claim in found])}" if found else ""
        parts += [where + (_size(found) if verdict != OPEN else _nearly(found))] if found else []
    return _listed(parts)


def _nearly(claims: Sequence[Claim]) -> str:
    """Return in words the numbers of those undecided claims whose intervals leave 0 out."""
    near = [claim for claim in claims if claim.low > 0 or claim.high < 0]
    told = "; ".join(f"{short(claim)} at p = {claim.text}" for claim in near)
    return f" ({told}: it may be chance)" if told else ""


def _size(claims: Sequence[Claim]) -> str:
    """Return how large differences of one sign are: one with its interval, of several the ends."""
    if not claims[1:]:
        return f" ({short(claims[0])})"
    least, most = sorted(abs(claim.effect) for claim in claims)[:: len(claims) - 1]
    return f" (by {least:.1f} to {most:.1f} points)"


def _over_p(table: pd.DataFrame, gaps: pd.Series) -> Numbers:
    """Return at which p numbers of a table were measured, and how far some of them are off."""
    ends = dict(zip(("min", "max", "mean"), (gaps.min(), gaps.max(), gaps.mean()), strict=True))
    return {"ps": _listed(_ps(table)), **{n: f"{v:.1f}" for n, v in ends.items()}}


def _ps(table: pd.DataFrame) -> list[str]:
    ps = table["setting"].str.extract(r"p=([\d.]+)")[0].astype(float)
    return [f"{p:g}" for p in sorted(ps.unique())]


def _fedavg_higher() -> Numbers:
    every = _at_own_scale("001", "CIFAR-10")
    table = every[every["seeds"].ge(LEAST_SEEDS) & every["verdict"].isin(OWN)]
    alone, federated = (table[table["method"].eq(name)] for name in ("Local", FEDAVG))
    agree, far = alone["verdict"].eq(AGREES).sum(), federated["verdict"].eq(DIFFERS)
    gaps, open_ = federated["gap"][far], federated[~far]
    if agree <= len(alone) / 2 or gaps.min() < 0 or not open_["verdict"].eq(IMPRECISE).all():
        raise Unsupported(f"local training differs, or FedAvg does not: {table}")
    others = table.drop([*alone.index, *federated.index])
    above = (others["gap"].gt(0) & others["verdict"].eq(DIFFERS)).sum()
    said = {"agree": int(agree), "alone": len(alone), "federated": len(federated)}
    said |= {"above": int(above), "others": len(others), "seeds": int(table["seeds"].min())}
    words = {"apart": _lower(alone), "tuned": _tuned("cifar10", "paper"), "because": _because()}
    words["open"] = f"; {len(open_)} of FedAvg's are too imprecise to tell" if len(open_) else ""
    kept = _kept("specialists", "cifar10", "paper")
    return {**said, "differ": len(gaps), "kept": kept, **words, **_over_p(table, gaps)}


def _kept(section: str, dataset: str, scale: str = SCALE) -> str:
    """Return at which p, and in how many seeds, the kept model of FedAvg is the initial one."""
    panel = _panel(section, dataset, scale)
    runs, every = (rows[rows["method"].eq(FEDAVG)] for rows in (panel.initial, panel.frame))
    if not len(runs):
        raise Unsupported(f"no initial model was kept in {section} on {dataset}")
    seeds = every.groupby("p")["seed"].nunique().to_dict()
    some = runs.groupby("p")["seed"].nunique().to_dict()
    return _listed([f"{n} of {seeds[p]} seeds at p = {p:g}" for p, n in some.items()])


def _fedavg() -> Numbers:
    return {name: _kept("specialists", name) for name in ("cifar10", "ag_news")}


def _lower(table: pd.DataFrame) -> str:
    """Return in words by how many points some numbers differ from those printed, and which."""
    off = table[table["verdict"].eq(DIFFERS)]
    where = off["setting"].str.extract(r"^(\w+ test).*p=([\d.]+)").itertuples(index=False)
    told = [
        f"{abs(gap):.1f} points {'lower' if gap < 0 else 'higher'} ({test}, p = {float(p):g})"
        for gap, (test, p) in zip(off["gap"], where, strict=True)
    ]
    return f"the others are {_listed(told)}" if told else "none differs"


def _partition(section: str, dataset: str, method: str) -> Any:
    """Return the request that says which clients a method of a section has."""
    runs = REGISTRY.sections[section].runs(SCALE, dataset)
    return next(run.experiment.task.partition for run in runs if run.method == method)


def _small_experts() -> Numbers:
    return {"p": f"{_partition('architectures', 'cifar10', FEDAVG).p:g}"}


def _opted_out() -> Numbers:
    panel = _panel("opt_out", "cifar10")
    there = "method == @FEDAVG and q == 0.95 and p == 0.2"
    kept, rows = panel.initial.query(there), panel.frame.query(there)
    logged = rows["metric"].eq(two_experts.GLOBAL) & rows["seed"].isin(kept["seed"])
    course = frames.curve(rows[logged], two_experts.GLOBAL).sort_values("round")
    before, first = (course.groupby("seed")["value"].nth(n) for n in (0, 1))
    if first.min() < before.max() + 0.1:
        raise Unsupported(f"runs of which the initial model was kept did not train: {first}")
    said = {"kept": len(kept), "seeds": rows["seed"].nunique()}
    return {**said, "least": f"{first.min():.0%}", "most": f"{first.max():.0%}"}


def _released(dataset: str, departure: str, scale: str) -> tuple[Panel, pd.DataFrame, pd.DataFrame]:
    """Return a panel of released code, and scores with one departure of it and without any.

    Where every run has trained.
    """
    shown = [_panel(section, dataset, scale) for section in ("as_released", "specialists")]
    released, plain = map(two_experts.of_panel, shown)
    released = two_experts.where_trained(released, *shown)
    return shown[0], released[released["departure"] == departure], plain


def _last_client() -> Numbers:
    panel, last, plain = _released("cifar10", LAST_CLIENT, SCALE)
    ps = last["p"].unique().tolist()
    theirs, average = (by(rows, metric=two_experts.GLOBAL)(FEDAVG, p=ps) for rows in (last, plain))
    lost = judge("The average beats the last client's model", "", average, theirs)
    said = {"ps": ", ".join(f"{p:g}" for p in ps), "rounds": panel.setting.rounds}
    return {"lost": number(lost, HOLDS), **said}


def _printed_fedavg() -> Numbers:
    sides = _gaps_to_print("cifar10", LAST_CLIENT, [FEDAVG])
    nearer = _nearer(*sides)
    # The sides by name: sentences differ in which of them comes first.
    last, rest = (
        "those of the last client's model are nearer",
        ", which would explain a part of the difference",
    )
    words = {HOLDS: last + rest, FAILS: "the average's are nearer", OPEN: "neither are nearer"}
    said = {"which": words[nearer.verdict], "by": number(nearer, *TESTED)}
    return {**said, **_mean_distances(*sides)}


def _gaps_to_print(dataset: str, departure: str, methods: Sequence[str]) -> list[pd.DataFrame]:
    """Return by how much accuracies differ from published ones, as described and as released."""
    _, released, plain = _released(dataset, departure, "paper")
    known = two_experts.printed("001", dataset)
    tables = (plain[plain["p"].isin(released["p"])], released)
    return [two_experts.gaps(table, known, methods) for table in tables]


def _nearer(described: pd.DataFrame, released: pd.DataFrame) -> Claim:
    far, near = map(two_experts.distances, (described, released))
    return judge("What was released is nearer", "", far, near)


def _mean_distances(described: pd.DataFrame, released: pd.DataFrame) -> Numbers:
    """Return how far accuracies are from the published ones, and over which p that is a mean."""
    sides = {"described": described, "released": released}
    off = {
        name: f"{100 * np.mean([*two_experts.distances(side).values()]):.1f}"
        for name, side in sides.items()
    }
    return {**off, "ps": _listed([f"{p:g}" for p in sorted(released["p"].unique())])}


def _because() -> str:
    """Return in words what is known of why FedAvg is better here than published."""
    try:
        found = NUMBERS["printed fedavg"]()
    except Missing:
        return "whether that explains the difference is not yet known"
    return (
        f"that model's accuracies are {found['released']} points from the published ones (p = "
        f"{found['ps']}), the average's {found['described']}: {found['which']}"
    )


def _angles() -> Numbers:
    panel, told = _panel("rotated", "rotated_mnist"), dict[str, object]()
    last = panel.setting.rounds
    rounds = [last * part // 5 for part in range(2, 6)]  # the last three fifths
    course = frames.curve(panel.frame, "test_accuracy")
    wide = course.pivot_table("value", "round", "method").loc[rounds]
    for name, method in (("angle", BY_ANGLE), ("label", BY_LABEL)):
        ahead = wide[method] - wide[FEDAVG]
        if not ahead.is_monotonic_increasing or ahead.iloc[-1] > 0:
            raise Unsupported(f"{method} does not catch up with FedAvg: {ahead}")
        told[name] = _listed([f"{100 * gap:+.1f}" for gap in ahead])
    return {**told, "rounds": _listed([str(t) for t in rounds])}


def _permutations() -> Numbers:
    dealt = _partition("permuted", "permuted_cifar10", with_k(4)).of
    return {"size": dealt.size, "clients": dealt.clients}


def _too_small() -> Numbers:
    rows = published("001", "Table 1e")
    rows = rows.assign(p=rows["setting"].str.extract(r"p=([\d.]+)")[0])
    rows = rows[rows["metric"].str.startswith("global")]
    printed, rescaled = (rows[rows["metric"].str.endswith(e)] for e in ("accuracy", "DERIVED"))
    both = printed.merge(rescaled, on=["method", "p"], suffixes=("", "_rescaled"))
    factors = both["value_rescaled"] / both["value"]
    if not (factors.between(7.5, 7.7).all() and both["value"].lt(25).all()):
        raise Unsupported(f"Table 1e: {both}")
    low, high = both["value"].agg(["min", "max"])
    return {"count": len(both), "least": f"{low:g}", "most": f"{high:g}"}


def _minus(a: BySeed, b: BySeed, *wanted: str, unit: str | None = None) -> str:
    """Return what ``a`` has more than ``b``, in words; Unsupported if that is none ``wanted``."""
    about = {} if unit is None else {"unit": unit}
    claim = judge("a > b", "", a, b, **about)
    return number(claim, *wanted) if wanted else short(claim)


def _divergence() -> Numbers:
    frame = _panel("label_skew", "cifar10").frame
    late = {
        part: by_method(fedmix.late(frames.divergence(_panel(section, "cifar10").frame)))
        for part, section in (("", "label_skew"), ("_long", "long"))
    }
    said: Numbers = {"rounds": fedmix.final_rounds(frame)}
    said["mean"] = f"{np.mean([*late[''][FEDAVG].values()]):.2f}"
    kept = (np.mean(fedmix.one_hotness(frame, method)) for method in (ENSEMBLE, FEDMIX))
    if next(kept) < next(kept):
        raise Unsupported("the ensemble's experts specialise more than FedMix's")
    first = late[""]
    said["short"] = _minus(first[FEDMIX], first[ENSEMBLE], unit="")
    for part, of in late.items():
        said[f"ensemble{part}"] = _minus(of[FEDAVG], of[ENSEMBLE], HOLDS, unit="")
        said[f"special{part}"] = _minus(of[FEDMIX], of[ENSEMBLE], OPEN, unit="")
    return said


def _long() -> Numbers:
    frame = _panel("long", "cifar10").frame
    own, new = (frames.final(frame, f"{of}_accuracy") for of in ("test", "global"))
    said = {"own": _minus(own[ENSEMBLE], own[FEDAVG], HOLDS)}
    return {**said, "new": _minus(new[ENSEMBLE], new[FEDMIX], HOLDS)}


def _skew() -> Numbers:
    theirs = clusters.conclusion()
    said = {"ifca": theirs["over_ifca"], "alone": theirs["over_local"]}
    panel = _panel("adaptive", "cifar10")
    table_of = lambda p: clusters.at_most(clusters.scores(p.frame), "J", "eps")  # noqa: E731
    by_p = {n: _by_p(panel, table_of, MOE, m) for n, m in (("tuned", TUNED), ("local", LOCAL))}
    if "ahead" in by_p["tuned"] or "behind" not in by_p["tuned"]:
        raise Unsupported(f"the mixture and the best cluster fine-tuned: {by_p}")
    return {**by_p, **{name: f"{100 * gain:+.1f} points" for name, gain in said.items()}}


def _gate() -> Numbers:
    section = REGISTRY.sections["adaptive_writers"]
    rates = [
        [float(run.where["eps"]) for run in section.runs(scale, "writers") if run.where.get("eps")]
        for scale in (SCALE, "paper")
    ]
    ours, theirs = max(rates[0]), min(rates[1])
    clients = _partition("adaptive_writers", "writers", MOE).clients
    return {"clients": clients, "ours": f"{ours:.2f}", "theirs": f"{theirs:.2f}"}


def _accuracy(claim: Claim) -> str:
    return f"{claim.effect:.1%} [{claim.low:.1%}, {claim.high:.1%}]"


def _joining() -> Numbers:
    table = _at_own_scale("000", "MNIST")
    table = table[table["seeds"] >= LEAST_SEEDS]
    if table["gap"].min() < 0 or not table["verdict"].eq(AGREES).all():
        raise Unsupported(f"a number is smaller here, or does not agree: {table}")
    lost = starting("new_clients", "two_class_mnist_paper@paper", "Without a gate")
    ours: Any = _panel("new_clients", "two_class_mnist").setting
    theirs: Any = _panel("new_clients", "two_class_mnist_paper", "paper").setting
    if not theirs.server_rate == theirs.phi_rate < ours.server_rate < ours.phi_rate:
        raise Unsupported(f"these rates are not higher ones: {ours}, {theirs}")
    rates = {"rate": ours.server_rate, "phi": ours.phi_rate, "theirs": theirs.server_rate}
    new = table[table["metric"].eq("test_accuracy_new_shard")].set_index("method")["value"]
    special = starting("new_clients", "two_class_mnist", "Without a gate")
    said = {"right": _accuracy(lost), "special": _accuracy(special), **rates}
    frame = _panel("new_clients", "two_class_mnist_paper", "paper").frame
    if (kept := np.mean(fedmix.one_hotness(frame, FEDMIX))) < fedmix.SPECIAL:
        raise Unsupported(f"experts specialise: q keeps {kept} of the largest entropy")
    said |= {"kept": f"{kept:.2f}"}
    said |= {"rounds": f"{ours.rounds:,}", "numbers": len(table)}
    said |= {"published": f"{new['FedAvg'] - new['FedMix (K=4)']:.1f}"}
    return {**said, "least": f"{table['gap'].min():.1f}", "most": f"{table['gap'].max():.1f}"}


def _gains() -> Numbers:
    frame = _panel("private_parts", "fashion_mnist").frame
    table, printed = analysis.scores(frame), analysis.printed("Table 2", "fashion_mnist")
    if table.loc[table["stage"].eq(WITH_MOE), "method"].nunique() < len(NINE):
        raise Missing("gains of all nine")
    first, share = analysis.largest_gains(table[table["S"] == 0], 2)
    if share < 0.8:
        raise Unsupported(f"{first} have {share:.0%} of the gain")
    (some, part), *known = (
        analysis.largest_gains(rows[rows["S"] == s], 1)
        for rows, s in ((table, 20), (printed.assign(seed=0), 0), (printed.assign(seed=0), 20))
    )
    none = by_method(analysis.gains(table[table["S"] == 0]))
    each = {m: short(judge("", "", none[m], 0.0, limits=(-1.0, 1.0), unit="points")) for m in first}
    ways = analysis.told_gains(frame, printed).values()
    ours, largest, theirs = (100 * rows.groupby("S")["value"].mean() for rows in ways)
    clear = ", ".join(f"{method} {gain}" for method, gain in each.items())
    said = {"first": _listed(first), "share": f"{share:.0%}", "clear": clear}
    said |= {"first_some": _listed(some), "share_some": f"{part:.0%}"}
    said |= {"theirs": " and ".join(f"{of:.0%} is {_listed(who)}'s" for who, of in known)}
    said |= {"none": f"{theirs[0]:.1f}", "some": f"{theirs[20]:.1f}"}
    return {**said, "adds": f"{(largest - ours).max():.2f}"}


def _gains_on_mnist() -> Numbers:
    table = analysis.scores(_panel("private_parts", "mnist").frame)
    gained = analysis.gains(table)
    known = analysis.gains(analysis.printed("Table 2", "mnist").assign(seed=0))
    ours, theirs = (
        100 * rows.groupby(["method", "S"])["value"].mean().unstack() for rows in (gained, known)
    )
    first = str(ours.max(axis=1).idxmax())
    most, known_most = (rows.drop(first).max().max() for rows in (ours, theirs))
    if not (ours.loc[first] > 2 * most).all() or not (theirs.loc[first] > 2 * known_most).all():
        raise Unsupported(f"others gain as well as {first}: {ours}, {theirs}")
    said = {"first": first, "most": f"{most:.1f}", "most_known": f"{known_most:.1f}"}
    for s in (0, 20):
        values = by_method(gained[gained["S"] == s])[first]
        said[f"gain_{s}"] = short(judge("", "", values, 0.0, limits=(-1.0, 1.0), unit="points"))
        said[f"known_{s}"] = f"{float(theirs[s][first]):+.1f}"
        said[f"mean_{s}"] = f"{theirs[s].mean():.1f}"
    return {**said}


def _gains_on_cifar10() -> Numbers:
    frame = _panel("private_parts", "cifar10").frame
    known = analysis.printed("Table 2", "cifar10")
    ways = analysis.told_gains(frame, known)
    ours, largest, theirs = (100 * rows.groupby("S")["value"].mean() for rows in ways.values())
    here, there = (ways[way][ways[way]["S"].eq(0)] for way in ("all converted", "published"))
    worst, next_one = (row for _, row in here.sort_values("value").head(2).iterrows())
    lost = -100 * worst["value"]
    if ours[0] > 0 or largest[0] < 0 or next_one["value"] > -0.02:
        raise Unsupported(f"gains: {ours}, largest {largest}; {worst}, {next_one}")
    best = 100 * there.set_index("method")["value"].nlargest(2)
    said = {"lost": f"{lost:.1f}", "method": worst["method"], "largest": f"{largest[0]:+.1f}"}
    said |= {f"mean_{s}": f"{theirs[s]:.1f}" for s in (0, 20)}
    said["theirs"] = _listed([f"{name}'s {gain:.1f}" for name, gain in best.items()])
    gained = by_method(here)
    each = [
        judge("", "", gained[str(m)], 0.0, limits=(-1.0, 1.0), unit="points") for m in best.index
    ]
    words = [f"{m} {short(claim)}" for m, claim in zip(best.index, each, strict=True)]
    return {**said, "ours": _listed(words)}


def _leaderboard() -> Numbers:
    table = comparison.standings(_panel("every_method", "fashion_mnist").frame)
    beaten = (f"{paper} beats {TUNED}" for paper in comparison.PROPOSED)
    claims = [starting("every_method", "fashion_mnist", start) for start in beaten]
    if ahead := [claim.text for claim in claims if claim.verdict == HOLDS]:
        raise Unsupported(f"these hold: {ahead}")
    front = comparison.frontier(table).query("best").sort_values("x")["method"].tolist()
    at = by(table[table["kind"].eq(comparison.OWN)])
    alone = _minus(at(TUNED), at(LOCAL), OPEN)
    return {"front": _listed(front), "bias": _minus(at(BIAS), at(TUNED)), "alone": alone}


def _private_parts() -> Numbers:
    table = analysis.scores(_panel("every_method", "fashion_mnist").frame)
    alone = scored(table, method=LOCAL)
    nine = scored(table, method=NINE)
    said = {"nine": _minus(alone, nine, HOLDS)}
    here = _panel("fourteen", "cifar10").frame
    curve = frames.curve(here, "test_accuracy", weighted=True).query("S == 0")
    last, five = curve["round"].max(), [*TRADITIONAL]
    now, then = (scored(curve, method=five, round=t) for t in (last, last // 2))
    said["late"] = _minus(now, then, HOLDS)
    _minus(now, scored(curve, method=MAJORITY), FAILS)  # they are below the baseline
    for dataset in ("fashion_mnist", "mnist", "cifar10"):
        known = analysis.printed("Table 1", dataset).query("S == 0").set_index("method")["value"]
        ahead = known[[*NINE]].mean() - known[[*TRADITIONAL]].mean()
        said[dataset] = f"published: {100 * ahead:.1f}"
    return {**said}


def _gates() -> Numbers:
    table = analysis.scores(_panel("gates", "fashion_mnist").frame)
    setting: Any = _panel("gates", "fashion_mnist").setting
    table = table[table["S"].eq(max(table["S"]))]
    plain = scored(table[table["stage"].eq("") & table["method"].ne(MAJORITY)])
    said = {"of": _listed([m for m in table["method"].unique() if m != MAJORITY])}
    tops = analysis.varied(table, "k", setting.clients)
    for k, word in ((setting.clients, "every"), (min(setting.tops), "few")):
        said[word] = _minus(scored(tops, k=k), plain, OPEN)
    return {**said}


def _energies() -> Numbers:
    dimensions = 512
    v = analysis.at_random(dimensions)
    energies, cosines = np.logaddexp.reduce(v, axis=-1), v.sum(-1)
    same = [float(stats.spearmanr(*pair).statistic) for pair in zip(energies, cosines, strict=True)]
    number(judge("Denoising at T = 1 orders by a cosine", "", same, 0.99), HOLDS)
    constant, spread = f"{np.log(dimensions):.2f}", f"{energies.std(1).mean():.4f}"
    found = {"same": f"{np.mean(same):.4f}", "constant": constant, "spread": spread}
    return {**found, "clients": len(v), "dimensions": dimensions}


def _label_sets() -> Numbers:
    frame = _panel("privacy", "cifar10").frame
    if not len(wrong := fedmix.wrong_sets(frame)):
        raise Missing("label sets")
    if wrong.any():
        raise Unsupported(f"label sets read wrongly off phi: {wrong.to_dict()}")
    return {"clients": len(frame.loc[frame["client"] >= 0, ["seed", "client"]].drop_duplicates())}


_FUNCTIONS: tuple[Callable[[], Numbers], ...] = (
    _floor, _own_scale, _tuning, _higher, _own_network, _fedavg_higher, _last_client,
    _printed_fedavg, _too_small, _divergence, _long, _joining, _skew, _gate, _energies, _label_sets,
    _gains, _gains_on_mnist, _gains_on_cifar10, _private_parts, _gates, _leaderboard,
    _small_experts, _opted_out, _fedavg, _angles, _permutations,
)  # fmt: skip
NUMBERS = {of.__name__.strip("_").replace("_", " "): cache(of) for of in _FUNCTIONS}
_KNOWN: dict[str, Callable[[], Numbers]] = {"scorecard": lambda: {"line": line()}, **NUMBERS}


def page() -> str:
    """Return what was found as Markdown: those sentences whose runs are stored.

    Unsupported if stored results contradict one.
    """
    parts = [HEAD.strip().format(p=DISCOVERY)]
    for name, row in words("findings.csv", "name").items():
        try:
            filled(row["needs"], _KNOWN)  # what the sentence says without its number
            said = filled(row["sentence"].format(**NUMBERS.get(name, dict)()), _KNOWN)
        except Missing:
            said = row["unknown"]
        links = [f"[figure](../{row['figure']}.png)"] if row["figure"] else []
        links.append(f"[notebook](../notebooks/{row['notebook']}.ipynb)")
        parts += [f"- {said} ({', '.join(links)})"] * bool(said)
    return "\n\n".join(parts) + "\n"


def in_short(notebook: str) -> Markdown:
    """Return the three sentences that a notebook opens with."""
    row = words("short.csv", "name")[notebook]
    head = {**LINES, "says": row["who"] or LINES["says"]}
    lines = {name: filled(row[name], _KNOWN) for name in LINES}
    lines["sure"] += BRACKETS if INTERVAL.search(lines["found"]) else ""
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
    file = paths.ROOT / "figures" / SCALE / "16_agreement.csv"
    measured = frames.read_table(file, "table of numbers")["verdict"]
    small = int(measured.eq(OTHER).sum())
    full = len(measured) - small - int(measured.eq(UNTRAINED).sum())
    agree = f", where {_verdicts(measured)}" if full else ""
    tested = claims[claims["verdict"].isin(TESTED)]
    whole = int(tested["tested on"].str.contains("(paper)", regex=False).sum())
    return (
        f"Of {held + fails + open_} tests of the papers' claims on their data, or on smaller and "
        f"similar data for CIFAR-100 and FEMNIST, {whole} of them at a paper's own scale, {held} "
        f"hold, {fails} do not hold and {open_} are undecided. Of {total} published numbers {full} "
        f"were measured at their own scale{agree}; {small} in smaller settings, where only the "
        f"order of methods can be compared."
    )


def written(text: str) -> str:
    """Return README's text with what stands between the marks replaced."""
    parts = iter((line(), table()))
    begin, end = map(re.escape, MARKS)
    fill = f"{MARKS[0]}\n{{}}\n{MARKS[1]}"
    return re.sub(f"{begin}.*?{end}", lambda _: fill.format(next(parts)), text, flags=re.DOTALL)


if __name__ == "__main__":
    readme = written(README.read_text("utf-8"))
    for file, text in ((paths.ROOT / "docs" / "FINDINGS.md", page()), (README, readme)):
        files.write(file, partial(Path.write_text, data=text), "the findings")
        print(file)
