"""A check of opting out: nothing that the server sees depends on data that opted out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedlib.data import Split
from fedlib.engine import Algorithm, play_round
from fedlib.engine.protocol import train_view
from fedlib.federation import Federation
from fedlib.tasks import Task
from fedrun.files import raw


@dataclass(frozen=True)
class Trace:
    """How many ``bytes`` reached a server in a run, and how many of them were ``changed``."""

    bytes: int
    changed: int


def tampered(task: Task, seed: int, inside: bool = False) -> Federation:
    """Return the federation of a task with other examples in place of those that do not take part.

    Examples that opted out, tests, and examples on which nobody trains are changed in the arrays
    before anything is fitted to them: inputs (or tokens) to their opposites, and labels to the next
    class. The partition is unchanged.

    Args:
        task: the task.
        seed: its seed.
        inside: whether the training examples that take part are changed instead, as a control.
    """
    data, division, stays = task.divided(seed)
    held = {"train": np.zeros(len(data.train), bool), "test": np.zeros(len(data.test), bool)}
    _mark(held, division.origin["train"], division.parts["train"].flat[stays])
    if not inside:
        held_out = division.parts["validation"]
        members = np.unique(division.parts["train"].owners[stays])
        chosen = held_out.flat[np.isin(held_out.owners, members)]
        _mark(held, division.origin["validation"], chosen)
    parts = zip((data.train, data.test), held.values(), strict=True)
    train, test = (_changed(x, rows if inside else ~rows, data.classes) for x, rows in parts)
    return task.assembled(replace(data, train=train, test=test), division, stays, seed)


def _mark(held: dict[str, np.ndarray], origin: str, rows: np.ndarray) -> None:
    """Mark which examples are held; positions refer to a split, or to both splits in a row."""
    whole = np.zeros(sum(map(len, held.values())), bool)
    whole[rows + (len(held["train"]) if origin == "test" else 0)] = True
    for marks, more in zip(held.values(), np.split(whole, [len(held["train"])]), strict=True):
        marks |= more


def _changed(split: Split, rows: np.ndarray, classes: int) -> Split:
    x, y = np.array(split.features), np.array(split.labels)
    if rows.any():
        x[rows] = x.max() - x[rows]
        y[rows] = (y[rows] + 1) % classes
    return Split(x, y, split.columns)


def trace(
    task: Task, algorithm: Algorithm, *, rounds: int, cohort: int, inside: bool = False
) -> Trace:
    """Play rounds of a task (seed 0) with its own examples and with `tampered` ones; compare both.

    All that the server sees is compared: every tensor of every message, the number of bytes that
    each client of a cohort sent, and all tensors that the server holds after each round.

    Args:
        task: the task.
        algorithm: the algorithm.
        rounds: the number of rounds.
        cohort: the number of clients in a round.
        inside: as of `tampered`.
    """

    def seen(fed: Federation) -> Iterator[Tensor]:
        """Yield the tensors that a server sees, in a fixed order."""
        state = algorithm.init(train_view(algorithm, fed), 0)
        for t in range(rounds):
            state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=cohort)
            for leaves in (
                report.messages,
                state.server_params,
                state.server_optimizer,
                state.server_memory,
            ):
                yield from (leaves[name] for name in sorted(leaves))
            yield report.upload

    total = changed = 0
    feds = task.build(0), tampered(task, 0, inside)
    for one, other in zip(*map(seen, feds), strict=True):
        total += one.numel() * one.element_size()
        changed += int((raw(one) != raw(other)).sum())
    return Trace(total, changed)
