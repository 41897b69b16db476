"""Which runs test the papers' claims: sections, notebooks, and the functions that judge them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from companion import claims, plotting
from companion.claims import Claim
from companion.panels import Panel, stored
from companion.sections import Section
from fedlib.data import class_names
from papers import comparison as board
from papers.adaptive import claims as adaptive
from papers.adaptive import experiments as clusters
from papers.adaptive.analysis import scores
from papers.fedmix import analysis
from papers.fedmix import claims as fedmix
from papers.fedmix import experiments as mixtures
from papers.pm_moe import analysis as gates
from papers.pm_moe import claims as pm_moe
from papers.pm_moe import experiments as private
from papers.specialists import claims as two
from papers.specialists import experiments as experts
from papers.specialists.analysis import as_printed, of_panel, whole

Judge = Callable[[Panel], list[Claim]]


@dataclass(frozen=True)
class ClaimTest:
    """The claims that a notebook judges on the runs of a section.

    Attributes:
        notebook: the number of the notebook, such as "07".
        section: the section.
        judge: returns the claims of a panel.
        about: follows the name of a panel if several sections have panels of this name.
    """

    notebook: str
    section: Section
    judge: Judge
    about: str = ""

    def of(self, panels: Iterable[Panel]) -> dict[str, list[Claim]]:
        """Return the claims of the panels, by the panel's name."""
        return {f"{p.name}{self.about}": self.judge(p) for p in panels}


def _framed(judge: Callable[[pd.DataFrame], list[Claim]]) -> Judge:
    """Return a judge that is given the frame of a panel."""
    return lambda panel: panel.judged(judge)


def _scored(judge: Callable[..., list[Claim]], *more: object) -> Judge:
    """Return a judge of the scores of a panel of 001 or 002."""
    return lambda p: p.judged(lambda f: judge(of_panel(replace(p, frame=f)), *more))


def _long(judge: Judge) -> Judge:
    """Return a judge without untested claims, for sections with few methods or seeds."""
    return lambda panel: [one for one in judge(panel) if one.verdict != claims.UNTESTED]


def _complete(judge: Judge) -> Judge:
    """Return a judge that waits for all planned seeds, for sections that are still being trained.

    A claim that was judged with fewer seeds before has another look at the same runs afterwards.
    """
    return lambda panel: [claim for p in whole([panel]) for claim in judge(p)]


def _divergence(panel: Panel) -> list[Claim]:
    relative = analysis.relative_divergence(panel.frame, panel.setting)  # type: ignore[arg-type]
    return panel.judged(
        lambda f: fedmix.divergence_claims(f, relative[relative["seed"].isin({*f["seed"]})])
    )


def _specialisation(panel: Panel) -> list[Claim]:
    return panel.judged(fedmix.specialisation_claims, panel.setting.phi_rate)  # type: ignore[attr-defined]


def _entropy(panel: Panel) -> list[Claim]:
    setting: Any = panel.setting
    return panel.judged(lambda f: fedmix.entropy_claims(analysis.client_entropy(f, setting)))


def _communication(panel: Panel) -> list[Claim]:
    every = panel.judged(fedmix.communication_claims, panel.dataset)
    return every + panel.judged(fedmix.tuning_claims)


def _clusters(panel: Panel) -> list[Claim]:
    seeds = sorted(panel.frame["seed"].unique().tolist())
    return panel.judged(fedmix.cluster_claims, analysis.truth(panel.setting.task, seeds))


def _joining(panel: Panel) -> list[Claim]:
    labels = len(class_names(panel.setting.task.dataset))
    every = panel.judged(fedmix.new_client_claims, "appendix")
    return every + panel.judged(fedmix.joining_claims, labels)


def _printed(panel: Panel) -> list[Claim]:
    """Return the claims on the paper's own protocol, without departures of its released code."""
    return _complete(_scored(two.generalisation_claims))(as_printed(panel))


def _first_version(panel: Panel) -> list[Claim]:
    qs = sorted(panel.frame["q"].dropna().unique())
    return [claim for q in qs for claim in _scored(two.first_version_claims, q)(panel)]


def _adaptive(panel: Panel) -> list[Claim]:
    every = panel.judged(lambda f: adaptive.adaptive_claims(scores(f)))
    return every + panel.judged(adaptive.evenness_claims)


def _fourteen(panel: Panel) -> list[Claim]:
    printed = gates.printed("Table 1", panel.dataset)
    return panel.judged(lambda f: pm_moe.fourteen_claims(gates.scores(f), printed, panel.diverged))


def _mixtures(panel: Panel) -> list[Claim]:
    if not gates.has_gates(panel.frame):  # first stages alone are judged with the fourteen
        return []
    return panel.judged(pm_moe.mixture_claims, panel.diverged)


def _cost(panel: Panel) -> list[Claim]:
    return panel.judged(lambda f: pm_moe.cost_claims(gates.second_stage_cost(panel)))


def _gates(panel: Panel) -> list[Claim]:
    if "gamma" not in panel.frame:  # of which nothing varies
        return []
    setting: Any = panel.setting
    return panel.judged(lambda f: pm_moe.gate_claims(gates.scores(f), setting))


def _every_method(panel: Panel) -> list[Claim]:
    return panel.judged(lambda f: board.leaderboard_claims(board.standings(f), panel.diverged))


_rotated: Judge = lambda p: p.judged(fedmix.rotated_claims, p.dataset)  # noqa: E731
_new: Judge = lambda p: p.judged(fedmix.new_client_claims, p.dataset)  # noqa: E731
_cluster: Judge = lambda p: p.judged(lambda f: adaptive.cluster_claims(scores(f)))  # noqa: E731
_hidden = _complete(_framed(pm_moe.revealed_claims))
_crowds = _framed(adaptive.participation_claims)
_joint = _complete(_long(_framed(adaptive.joint_claims)))
_ROUNDS = ", 2,000 rounds"
TESTS = (
    ClaimTest("01", mixtures.LABEL_SKEW, _divergence),
    ClaimTest("01", mixtures.LONG, _long(_divergence), _ROUNDS),
    ClaimTest("02", mixtures.LABEL_SKEW, _specialisation),
    ClaimTest("02", mixtures.LONG, _long(_specialisation), _ROUNDS),
    ClaimTest("03", mixtures.COMMUNICATION, _communication),
    ClaimTest("03", mixtures.LONG, _long(_communication), _ROUNDS),
    ClaimTest("04", mixtures.ABLATION, _framed(fedmix.ablation_claims)),
    ClaimTest("04", mixtures.LONG, _entropy, _ROUNDS),
    ClaimTest("05", mixtures.ROTATED, _rotated),
    ClaimTest("05", mixtures.ROTATED_LONG, _long(_rotated), ", 1,000 rounds"),
    ClaimTest("06", mixtures.PERMUTED, _clusters),
    ClaimTest("06", mixtures.PERMUTED_AS_PRINTED, _complete(_long(_clusters)), ", as printed"),
    ClaimTest("07", mixtures.COMMUNICATION, _new),
    ClaimTest("07", mixtures.LONG, _long(_new), _ROUNDS),
    ClaimTest("07", mixtures.NEW_CLIENTS, _joining),
    ClaimTest("08", mixtures.PRIVACY, _framed(fedmix.privacy_claims)),
    ClaimTest("09", experts.SPECIALISTS, _scored(two.generalisation_claims)),
    ClaimTest("09", experts.PRINTED, _long(_printed), ", as printed"),
    ClaimTest("09", experts.DIRICHLET, _scored(two.alpha_claims), ", alpha"),
    ClaimTest("09", experts.ARCHITECTURES, _scored(two.architecture_claims), ", architectures"),
    ClaimTest("10", experts.OPT_OUT, _scored(two.opt_out_claims)),
    ClaimTest("10", experts.FIRST_VERSION, _first_version, ", first version"),
    ClaimTest("10", experts.FIRST_OPTED, _complete(_first_version), ", first version as printed"),
    ClaimTest("11", clusters.ADAPTIVE, _adaptive),
    ClaimTest("11", clusters.ADAPTIVE_CLUSTERS, _complete(_cluster), ", numbers of clusters"),
    ClaimTest("11", clusters.ADAPTIVE_JOINT, _joint, ", experts trained"),
    ClaimTest("11", clusters.ADAPTIVE_ROTATED, _framed(adaptive.recovery_claims)),
    ClaimTest("11", clusters.ADAPTIVE_WRITERS, _framed(adaptive.writer_claims)),
    ClaimTest("11", clusters.ADAPTIVE_PARTICIPATION, _crowds, ", participation"),
    ClaimTest("11", clusters.ADAPTIVE_RELEASED, _framed(adaptive.protocol_claims), ", as released"),
    ClaimTest("11", clusters.ADAPTIVE_OPTIONS, _framed(adaptive.option_claims), ", other ways"),
    ClaimTest("12", private.FOURTEEN, _fourteen),
    ClaimTest("13", private.PRIVATE_PARTS, _mixtures),
    ClaimTest("13", private.PRIVATE_PARTS, _cost),
    ClaimTest("13", private.REVEALED, _hidden, ", private parts"),
    ClaimTest("13", private.BORROWED, _complete(_framed(pm_moe.feature_claims)), ", features"),
    ClaimTest("14", private.GATES, _gates),
    ClaimTest("15", board.EVERY_METHOD, _every_method),
)  # fmt: skip


def tested(notebook: str, panels: Mapping[str, Sequence[Panel]]) -> pd.DataFrame:
    """Return the table of a notebook's claims, judged on panels by the section's name."""
    found: dict[str, list[Claim]] = {}
    for test in TESTS:
        if test.notebook == notebook and test.section.name in panels:
            for name, some in test.of(panels[test.section.name]).items():
                found.setdefault(name, []).extend(some)
    return claims.table(found)


def of_stored(scale: str, *notebooks: str) -> pd.DataFrame:
    """Return the tests of some notebooks, or of all, on stored runs of a scale; nothing is trained.

    The column notebook has the numbers of the notebooks.
    """
    wanted = notebooks or tuple(dict.fromkeys(test.notebook for test in TESTS))
    asked = [test.section for test in TESTS if test.notebook in wanted]
    sections = {section.name: stored(section, [], scale) for section in asked}
    parts = [tested(number, sections).assign(notebook=number) for number in wanted]
    # Without those that are empty, whose columns are of no type: numbers are written as numbers.
    return pd.concat([rows for rows in parts if len(rows)] or parts, ignore_index=True)


def write(scale: str) -> list[str]:
    """Write the tables of tests that FINDINGS and the scorecard read, from stored runs of a scale.

    They are the same as those of notebooks that are executed at that scale.

    Returns:
        The numbers of the notebooks.
    """
    tests = of_stored(scale)
    for number, rows in tests.groupby("notebook"):
        plotting.save_table(rows.drop(columns="notebook"), f"{number}_claims", scale)
    return [str(number) for number in tests["notebook"].unique()]
