"""Sentences whose numbers are computed: brackets that stand for what stored results say.

They are filled from the results of the standard scale, by the claims that notebooks test:

    [[section/dataset | claim | rival]]  "beats RIVAL by 1.8 points [0.9, 2.6; 3 seeds]",
                                         or trails it, or does not differ clearly, or no runs yet
    [[section/dataset | claim | +]]      the signed number and its interval, as in README
    [[section/dataset | claim]]          the number, its interval and its seeds
    [[section/dataset | claim | holds]]  the same, of a claim that "holds", "does not hold", is
                                         "undecided" or is "tested" at all; with a minus before it
                                         the negative
    [[section/dataset]]                  how many seeds, and rounds, and the paper's
    [[finding | number]]                 a number of `papers.findings`

``claim`` is how its text begins; "..." in it stands for anything. What is filled in takes the side
that results take, so that no sentence is wrong when runs are added; but one that asks for a verdict
is an error where the verdict is another. There "section" alone is each of its data sets. After a
data set "@paper" names the scale.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from companion import claims
from companion.claims import OPEN, TESTED, UNTESTED, UNTRAINED, Claim
from companion.inference import LEAST_SEEDS
from companion.panels import Panel, stored
from companion.plotting import title
from papers import comparison
from papers.adaptive import analysis as clusters
from papers.adaptive import claims as adaptive
from papers.fedmix import analysis as fedmix_analysis
from papers.fedmix import claims as fedmix
from papers.pm_moe import analysis as pm_moe_analysis
from papers.pm_moe import claims as pm_moe
from papers.registry import REGISTRY
from papers.specialists import analysis as two_experts
from papers.specialists import claims as specialists

VERDICTS = {verdict: (verdict,) for verdict in TESTED} | {"tested": TESTED}
FIELD = re.compile(r"\[\[([^\]]+)\]\]")
SCALE = "standard"
UNSTATED = ("rotated", "permuted", "adaptive")  # sections whose paper states no number of rounds


class Unsupported(ValueError):
    """A sentence that its numbers no longer bear out."""


class Missing(LookupError):
    """The runs behind a sentence are not stored, or of too few seeds."""


def _clusters(panel: Panel) -> list[Claim]:
    seeds = sorted(panel.frame["seed"].unique().tolist())
    return fedmix.cluster_claims(panel.frame, fedmix_analysis.truth(panel.setting.task, seeds))


def _label_skew(panel: Panel) -> list[Claim]:
    rate = panel.setting.phi_rate  # type: ignore[attr-defined]
    diverge = fedmix.divergence_claims(panel.frame)
    return [*diverge, *fedmix.specialisation_claims(panel.frame, rate)]


def _long(panel: Panel) -> list[Claim]:
    frame, of = panel.frame, panel.dataset
    after = [*fedmix.communication_claims(frame, of), *fedmix.tuning_claims(frame)]
    return [*_label_skew(panel), *after, *fedmix.new_client_claims(frame, of)]


def _new_clients(panel: Panel) -> list[Claim]:
    frame = panel.frame
    return [*fedmix.new_client_claims(frame, "appendix"), *fedmix.joining_claims(frame, 10)]


def _fourteen(panel: Panel) -> list[Claim]:
    printed = pm_moe_analysis.printed("Table 1", panel.dataset)
    return pm_moe.fourteen_claims(pm_moe_analysis.scores(panel.frame), printed, panel.diverged)


def _gates(panel: Panel) -> list[Claim]:
    return pm_moe.gate_claims(pm_moe_analysis.scores(panel.frame), panel.setting)  # type: ignore[arg-type]


# How the notebooks judge a section's runs.
CLAIMS: dict[str, Callable[[Panel], Sequence[Claim]]] = {
    "label_skew": _label_skew,
    "long": _long,
    "communication": lambda p: fedmix.communication_claims(p.frame, p.dataset),
    "ablation": lambda p: fedmix.ablation_claims(p.frame),
    "rotated": lambda p: fedmix.rotated_claims(p.frame, p.dataset),
    "permuted": _clusters,
    "new_clients": _new_clients,
    "privacy": lambda p: fedmix.privacy_claims(p.frame),
    "architectures": lambda p: specialists.architecture_claims(two_experts.of_panel(p)),
    "specialists": lambda p: specialists.generalisation_claims(two_experts.of_panel(p)),
    "first_version": lambda p: specialists.first_version_claims(two_experts.of_panel(p)),
    "opt_out": lambda p: specialists.opt_out_claims(two_experts.of_panel(p)),
    "adaptive": lambda p: adaptive.adaptive_claims(clusters.scores(p.frame)),
    "adaptive_rotated": lambda p: adaptive.recovery_claims(p.frame),
    "adaptive_writers": lambda p: adaptive.writer_claims(p.frame),
    "fourteen": _fourteen,
    "private_parts": lambda p: pm_moe.mixture_claims(p.frame, p.diverged),
    "gates": _gates,
    "revealed_parts": lambda p: pm_moe.revealed_claims(p.frame),
    "every_method": lambda p: comparison.leaderboard_claims(
        comparison.standings(p.frame), p.diverged
    ),
}


@cache
def panels(section: str, scale: str = SCALE) -> Mapping[str, Panel]:
    """Return what is stored of a section at a scale, by data set."""
    return {panel.dataset: panel for panel in stored(REGISTRY.sections[section], [], scale)}


@cache
def _claims(section: str, dataset: str, scale: str) -> Sequence[Claim]:
    panel = panels(section, scale).get(dataset)
    return panel.claims(CLAIMS[section]) if panel else ()


def starting(section: str, place: str, start: str) -> Claim:
    """Return the claim whose text starts so, one without a number where its runs are not stored.

    ``place`` is a data set, with a scale if it is another one. ValueError unless there is one.
    """
    dataset, _, scale = place.partition("@")
    every = _claims(section, dataset, scale or SCALE)
    pattern = ".*".join(map(re.escape, start.split("...")))
    found = [claim for claim in every if re.match(pattern, claim.text)]
    absent = every and panels(section, scale or SCALE)[dataset].absent
    if every and len(found) != 1 and (found or not absent):
        raise ValueError(f"{section}/{place}: {len(found)} claims begin with {start!r}")
    return found[0] if found else Claim(start, "", "", UNTESTED, 0)


def filled(sentence: str, numbers: Mapping[str, Callable[[], Mapping[str, object]]]) -> str:
    """Return a sentence with its brackets filled, ``numbers`` being those of findings, by name.

    ValueError for a bracket that names no one claim.
    """

    def field(match: re.Match[str]) -> str:
        where, *rest = (part.strip() for part in match[1].split("|"))
        return str(numbers[where]()[rest[0]]) if where in numbers else _field(where, *rest)

    return FIELD.sub(field, sentence)


def _field(where: str, start: str = "", rival: str = "") -> str:
    section, _, dataset = where.partition("/")
    if not start:
        return _size(section, dataset)
    if wanted := VERDICTS.get(rival.removeprefix("-")):
        every = [dataset] if dataset else [*panels(section)]
        sign = -1 if rival.startswith("-") else 1
        numbers = [number(starting(section, d, start), *wanted, sign=sign) for d in every]
        if dataset:
            return numbers[0]
        if not numbers:
            raise Missing(section)
        return ", ".join(f"{n} on {title(d)}" for n, d in zip(numbers, every, strict=True))
    claim = starting(section, dataset, start)
    return short(claim) if rival == "+" else told(claim, rival)


def _size(section: str, dataset: str) -> str:
    dataset, _, scale = dataset.partition("@")
    panel = panels(section, scale or SCALE).get(dataset)
    theirs = REGISTRY.sections[section].settings("paper")
    if panel is None:
        return "no runs of this are stored yet"
    seeds = panel.frame.groupby("method")["seed"].nunique()
    many = f"{seeds.min()} to {seeds.max()}" if seeds.min() < seeds.max() else f"{seeds.max()}"
    rounds = f"{panel.setting.rounds:,}"
    if section.startswith(UNSTATED):
        rounds += " rounds (the paper does not state theirs)"
    elif dataset not in theirs:
        rounds += " rounds"
    else:
        whole = f"{theirs[dataset].rounds:,}"
        part = "" if rounds == whole else f"{rounds} of "
        rounds = f"{part}the paper's {whole} rounds"
    without = f", {panel.without}" if panel.left else ""
    return f"{many} {'seed' if many == '1' else 'seeds'}, {rounds}{without}"


def number(claim: Claim, *wanted: str, sign: int = 1) -> str:
    """Return a claim's number, interval and seeds in words, or their negative; with a sign if open.

    Unsupported if its verdict is none of those ``wanted``, Missing if it was not tested.
    """
    if claim.verdict in (UNTESTED, UNTRAINED):
        raise Missing(claim.text)
    if claim.verdict not in wanted:
        told = f"{claim.text!r} {claim.verdict}: {claim.measured}"
        raise Unsupported(f"{told}; the sentence says it {' or '.join(wanted)}")
    mean, low, high = _digits(claim, sign, "+" if OPEN in wanted and claim.unit else "")
    return f"{mean} [{low}, {high}; {claim.seeds} seeds]"


def _digits(claim: Claim, sign: int = 1, plus: str = "") -> tuple[str, str, str]:
    """Return a claim's number and the ends of its interval, or those of its negative."""
    digits = 1 if claim.unit else 2
    low, high = sorted(sign * end for end in (claim.low, claim.high))
    mean = f"{sign * claim.effect:{plus}.{digits}f} {claim.unit}".strip()
    return mean, f"{low:.{digits}f}", f"{high:.{digits}f}"


def _known(claim: Claim) -> bool:
    """Return whether a claim has a number that may be shown."""
    return claim.verdict in (*TESTED, claims.ELSEWHERE) and claim.low <= claim.high


def told(claim: Claim, rival: str = "") -> str:
    """Return a claim's number in words, or with a ``rival`` what follows a subject."""
    if not _known(claim):
        few = f"{claim.seeds} of {LEAST_SEEDS} seeds"
        why = few if 0 < claim.seeds < LEAST_SEEDS else "not trained here yet"
        why = "one of them did not train" if claim.verdict == UNTRAINED else why
        return f"is not compared with {rival} ({why})" if rival else f"not known yet ({why})"
    sign = -1 if rival and claim.high < 0 else 1
    clear = claim.verdict != OPEN and (claim.low > 0 or claim.high < 0)
    mean, low, high = _digits(claim, sign if clear else 1, "" if clear or not rival else "+")
    size = f"{mean} [{low}, {high}; {claim.seeds} seeds]"
    if not rival:
        return size
    if not clear:
        chance = claims.DISCOVERY < claim.p < 0.05 and (claim.low > 0 or claim.high < 0)
        why = "; it may be chance among so many claims" if chance else ""
        return f"does not differ clearly from {rival} ({size}{why})"
    return f"{'beats' if sign > 0 else 'trails'} {rival} by {size}"


def short(claim: Claim) -> str:
    """Return a claim's signed number and interval, or that there is none."""
    if claim.verdict == UNTRAINED:
        return "one of them did not train"
    if not _known(claim):
        return "not trained here yet" if claim.seeds == 0 else f"too few seeds ({claim.seeds})"
    mean, low, high = _digits(claim, plus="+" if claim.unit else "")
    return f"{mean} [{low}, {high}]"
