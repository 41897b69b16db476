"""The five papers as one value, which `python -m papers` and notebooks give to the companion.

It includes which run a published number is compared with.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import pandas as pd

from companion.panels import Panel
from companion.sections import Block, PublishedTable, Registry, Section
from fedlib import paths
from papers import comparison
from papers.adaptive import analysis as adaptive
from papers.adaptive import experiments as adaptive_runs
from papers.adaptive.experiments import ADAPTIVE
from papers.fedmix import analysis as fedmix
from papers.fedmix import experiments as fedmix_runs
from papers.fedmix.experiments import NEW_CLIENTS
from papers.pm_moe import analysis as pm_moe
from papers.pm_moe import experiments as pm_moe_runs
from papers.pm_moe import family
from papers.pm_moe.experiments import FOURTEEN, PRIVATE_PARTS
from papers.published import claims, floors, published, tables
from papers.specialists import analysis as specialists
from papers.specialists import experiments as specialists_runs
from papers.specialists.experiments import FIRST_VERSION, PRINTED, SPECIALISTS

# The sections of all papers, those of a paper in the order of its module.
SECTIONS = {
    section.name: section
    for paper in (fedmix_runs, specialists_runs, adaptive_runs, pm_moe_runs, comparison)
    for section in vars(paper).values()
    if isinstance(section, Section)
}


def _no_opt_out(panel: Panel) -> pd.DataFrame:
    """Return the scores of a panel without opting out."""
    table = specialists.of_panel(panel)
    return table if "q" not in table else table[table["q"].isna() | table["q"].eq(0.0)]


def _most_clusters(panel: Panel) -> pd.DataFrame:
    """Return the scores at the largest J, with training alone at both rates of exploration."""
    table = adaptive.scores(panel.frame)
    table = table[table["J"].eq(table["J"].max()) | table["J"].isna()]
    alone = table["eps"].isna()
    both = [table[alone].assign(eps=eps) for eps in (0.0, 0.33)]
    return pd.concat([table[~alone], *both], ignore_index=True)


@lru_cache(maxsize=1)  # four tables need the same scores, which are slow to compute
def _scores(panel: Panel) -> pd.DataFrame:
    return pm_moe.scores(panel.frame)


def _of_004(item: str, notebook: str) -> PublishedTable:
    section = FOURTEEN if item == "Table 1" else PRIVATE_PARTS
    printed = partial(pm_moe.printed, item)
    return PublishedTable("004", section, notebook, printed, _scores, _KEYS, (item, "S"), family)


def _of_two_experts(
    paper: str,
    section: Section,
    notebook: str,
    measured: Callable[[Panel], pd.DataFrame] = _no_opt_out,
) -> PublishedTable:
    keys, printed = ("method", "metric", "p"), partial(specialists.printed, paper)
    return PublishedTable(paper, section, notebook, printed, measured, keys, ("metric", "p"))


def _as_printed(panel: Panel) -> pd.DataFrame:
    return specialists.of_panel(specialists.as_printed(panel))


# For each table: its printed numbers, the measured ones, and the columns that match them.
_KEYS = ("method", "stage", "S")
_MEASURED = lambda panel: fedmix.measured(panel.frame)  # noqa: E731
_APPENDIX_F = lambda dataset: fedmix.printed(), _MEASURED, ("what", "method"), ("what",)
_BEST = lambda panel: pm_moe.best_of_nine(_scores(panel), panel.diverged)  # noqa: E731
_TABLE_1 = pm_moe.best_printed, _BEST, _KEYS, ("Table 1", "S"), family
_TABLE_2 = adaptive.printed, _most_clusters, ("method", "p", "eps"), ("p",)
TABLES: tuple[PublishedTable, ...] = (
    PublishedTable("000", NEW_CLIENTS, "07_new_clients", *_APPENDIX_F),
    _of_two_experts("001", PRINTED, "09_specialists_and_generalists", _as_printed),
    _of_two_experts("001", SPECIALISTS, "09_specialists_and_generalists"),
    _of_two_experts("002", FIRST_VERSION, "10_opt_out"),
    PublishedTable("003", ADAPTIVE, "11_adaptive_experts", *_TABLE_2),
    _of_004("Table 1", "12_fourteen_baselines"),
    PublishedTable("004", PRIVATE_PARTS, "13_pm_moe", *_TABLE_1),
    _of_004("Table 2", "13_pm_moe"),
    _of_004("Table 3", "14_energy_denoising"),
    _of_004("Table 4", "13_pm_moe"),
)


def hours_of(costs: pd.DataFrame) -> float:
    """Return the GPU hours of runs, given how many there are and the seconds of some of them.

    Args:
        costs: columns runs, seconds (NaN takes the mean of the others) and jobs (how many runs
            share the GPU).
    """
    each = costs["seconds"] / costs["jobs"]
    return float((costs["runs"] * each.fillna(each.mean())).sum() / 3600)


def _gpu_hours() -> dict[str, float]:
    """Return the GPU hours by part, as far as a GPU was timed (`benchmarks.gpu`)."""
    costs = pd.read_csv(paths.ROOT / "benchmarks" / "gpu" / "cost.csv")
    return {str(part): hours_of(of) for part, of in costs.groupby("part")}


REGISTRY = Registry(
    sections=SECTIONS,
    tables=TABLES,
    published=published,
    claims=claims,
    floors=floors,
    floored={"001": "p", "002": "p", "003": "p", "004": "S"},
    gpu_hours=_gpu_hours(),
    blocks=tuple(Block(n, **of) for n, of in enumerate(tables("campaign.toml")["blocks"], 1)),
)
