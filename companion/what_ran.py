"""The table of settings that a notebook shows: what ran, beside what the paper ran."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import pandas as pd

from companion.diverged import lost
from companion.panels import Panel
from companion.plotting import title
from companion.sections import Section
from fedlib import data
from fedlib.data.records import RECORDS
from fedlib.models import FunctionalModel
from fedlib.optim import Optimizer
from fedlib.values import as_code

MOST_SHOWN = 4  # the most different values in a cell
WHOLE = "paper"
_OPTIMISERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def what_ran(
    section: Section,
    shown: Sequence[Panel],
    also: Mapping[str, tuple[Section, Panel]] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the settings of runs, a column per panel, and beside them the paper's own setting.

    The latter is that of the same data sets, or else of the first one; it has no seeds if it did
    not run here, and no column of its own if it did. Methods that a panel lacks do not count. Runs
    that diverged have a row of their own.

    Args:
        section, shown: a section and panels of it.
        also: panels of other sections, each with its section, by the names of their columns.
    """
    columns: dict[str, dict[str, str]] = {}
    for name, (of, p) in [*also.items(), *((p.name, (section, p)) for p in shown)]:
        ran = _setup(of, p.scale, p.dataset, p.rounds, without=p.absent)
        column = ran | {"seeds": str(p.frame["seed"].nunique())}
        if gone := [f"{run.name} (seed {seed})" for run, seed in lost(of, p.scale, p.dataset)]:
            column["diverged, not shown"] = "; ".join(gone)
        columns[name] = column
    theirs = section.settings(WHOLE)
    same = [name for name in theirs if name in {p.dataset for p in shown}] or [*theirs][:1]
    for name in same:
        columns.setdefault(f"{title(name, WHOLE)} ({WHOLE})", _setup(section, WHOLE, name))
    return pd.DataFrame(columns).fillna("")


def _setup(
    section: Section, scale: str, dataset: str, rounds: int = 0, without: Collection[str] = ()
) -> dict[str, str]:
    runs = section.by_run(scale, dataset, seeds=1, rounds=rounds)
    last = [one for run, (one,) in runs if run.method not in without]
    every = [stage for experiment in last for stage in experiment.stages]
    clients = {e: e.task.partition.num_clients() for e in every}
    federated = [e for e in every if e.algorithm.communicates and clients[e] != 1] or every
    kinds = dict.fromkeys((e.task.model, *data.form(e.task.dataset)) for e in federated)
    return {
        "examples, training + test": _examples(last[0].task.dataset),
        "clients": _several(clients[e] or "one per writer" for e in federated),
        "clients per round": _several(
            f"{e.cohort:.0%}" if isinstance(e.cohort, float) else e.cohort for e in federated
        ),
        "rounds": _several(e.rounds for e in federated),
        "network": _several(as_code(e.task.model) for e in federated),
        "parameters": _several(f"{FunctionalModel(*kind).parameters():,}" for kind in kinds),
        "batch size": _several(e.algorithm.batch_size or "all" for e in federated),
        "local epochs": _several(e.algorithm.epochs for e in federated),
        "client's optimiser": _several(_optimiser(e.algorithm.client) for e in federated),
        "server's optimiser": _several(_optimiser(e.algorithm.server) for e in federated),
    }


def _examples(name: str) -> str:
    if name.endswith(data.SAMPLE):  # of any size; a reader may not have it
        return f"a sample of {title(name.removesuffix(data.SAMPLE))}"
    if name in RECORDS:
        sizes = RECORDS[name].sizes
    else:
        found = data.load(name)
        sizes = len(found.train), len(found.test)
    return " + ".join(f"{count:,}" for count in sizes)


def _optimiser(one: Optimizer) -> str:
    if one.is_plain and one.lr == 1:
        return "averages"
    options = [f"momentum {one.momentum:g}"] if one.momentum else []
    options += [f"weight decay {one.weight_decay:g}"] if one.weight_decay else []
    options += [f"{name} {rate:g}" for name, rate in one.rates]
    return ", ".join([f"{_OPTIMISERS[one.name]}, rate {one.lr:g}", *options])


def _several(values: Iterable[object]) -> str:
    """Return the different values in the order of their occurrence; at most ``MOST_SHOWN``."""
    known = [*dict.fromkeys(map(str, values))]
    return "; ".join([*known[:MOST_SHOWN], *["..."][: len(known) - MOST_SHOWN]])
