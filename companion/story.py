"""What a notebook tells beside its figures: what ran, and the code that ran."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
from IPython.display import Markdown

from companion.panels import Panel
from companion.plotting import title
from companion.sections import Section
from fedlib import data
from fedlib.data import DatasetError
from fedlib.data.records import RECORDS
from fedlib.models import Net
from fedlib.optim import Optimizer
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import as_code

MOST_TOLD = 4  # different values of one thing, beside each other
WHOLE = "paper"
_OPTIMISERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def what_ran(section: Section, shown: Sequence[Panel]) -> pd.DataFrame:
    """Return what ran, a column per panel, and beside it the paper's own setting.

    That is of the same data set, or else of its first one.
    """
    columns = {p.name: _told(section, p.scale, p.dataset, p.frame["seed"].nunique()) for p in shown}
    theirs = section.settings(WHOLE)
    same = [name for name in theirs if name in {p.dataset for p in shown}] or [*theirs][:1]
    columns |= {f"{title(name)} (the paper's scale)": _told(section, WHOLE, name) for name in same}
    return pd.DataFrame(columns)


def _told(section: Section, scale: str, dataset: str, seeds: int = 0) -> dict[str, str]:
    runs = section.runs(scale, dataset)
    last = [section.experiments(scale, dataset, run, seeds=1)[0] for run in runs]
    every = [stage for experiment in last for stage in experiment.stages]
    federated = [e for e in every if e.algorithm.federates and _clients(e) != 1] or every
    task = last[0].task
    return {
        "examples, training + test": _examples(task.dataset),
        "clients": _several(_clients(e) or "one per writer" for e in federated),
        "clients per round": _several(
            f"{e.cohort:.0%}" if isinstance(e.cohort, float) else e.cohort for e in federated
        ),
        "rounds": _several(e.rounds for e in federated),
        "network": _several(as_code(e.task.model) for e in federated),
        "parameters": _several(_parameters(e.task) for e in federated),
        "batch size": _several(e.algorithm.batch_size or "all" for e in federated),
        "local epochs": _several(e.algorithm.epochs for e in federated),
        "client's optimiser": _several(_optimiser(e.algorithm.client) for e in federated),
        "server's optimiser": _several(_optimiser(e.algorithm.server) for e in federated),
        "seeds": f"{seeds or section.settings(scale)[dataset].seeds}",
    }


def _sizes(name: str) -> tuple[int, int]:
    found = data.load(name)
    return len(found.train), len(found.test)


def _examples(name: str) -> str:
    try:
        sizes = RECORDS[name].sizes if name in RECORDS else _sizes(name)
    except DatasetError:
        return "not at hand"
    return " + ".join(f"{count:,}" for count in sizes)


def _clients(experiment: Experiment) -> int | None:
    """Return the number of clients; None where a column of the data says whose is what."""
    part: Any = experiment.task.partition
    times = 1
    while not hasattr(part, "clients"):
        part, times = part.of, times * getattr(part, "times", 1)
    return part.clients and times * part.clients


def _optimiser(one: Optimizer) -> str:
    if one.is_plain and one.lr == 1:
        return "averages"
    options = [f"momentum {one.momentum:g}"] if one.momentum else []
    options += [f"weight decay {one.weight_decay:g}"] if one.weight_decay else []
    options += [f"{name} {rate:g}" for name, rate in one.rates]
    return ", ".join([f"{_OPTIMISERS[one.name]}, rate {one.lr:g}", *options])


def _parameters(task: Task) -> str:
    return f"{Net(task.model, *data.form(task.dataset)).parameters():,}"


def _several(values: Iterable[object]) -> str:
    """Return different values beside each other, in the order in which they come."""
    told = [*dict.fromkeys(map(str, values))]
    return "; ".join([*told[:MOST_TOLD], *["..."][: len(told) - MOST_TOLD]])


def source(*functions: Callable[..., Any]) -> Markdown:
    """Return the code of functions of the library as it runs, without their docstrings."""
    parts = []
    for function in functions:
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
        body = ast.parse("\n".join(lines)).body[0].body  # type: ignore[attr-defined]
        if ast.get_docstring(ast.parse("\n".join(lines)).body[0]) is not None:  # type: ignore[arg-type]
            lines[body[0].lineno - 1 : body[0].end_lineno] = []
        parts.append(f"# {function.__module__}: {function.__qualname__}\n" + "\n".join(lines))
    return Markdown("```python\n" + "\n\n".join(parts) + "\n```")
