"""Opting out, checked on a run: no byte of what the server sees depends on what opted out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlib.engine import Algorithm, play_round
from fedlib.engine.protocol import playing
from fedlib.federation import OPTED_IN, Federation


@dataclass(frozen=True)
class Trace:
    """How many ``bytes`` reached a server in a run, and how many of them were ``changed``."""

    bytes: int
    changed: int


def tampered(fed: Federation, inside: bool = False) -> Federation:
    """Return the federation with other training examples in place of those that opted out.

    Their inputs are turned into their negatives and their labels into the next class. With
    ``inside`` this befalls the training examples that take part instead, as a control. KeyError
    where nobody opts out.
    """
    home = fed.at_home()
    taking_part = home.train.side[OPTED_IN] > 0
    rows = home.train.index[home.train.real & (taking_part == inside)]
    x, y = home.train.x.clone(), home.train.y.clone()
    x[rows] = x.max() - x[rows]
    y[rows] = (y[rows] + 1) % fed.classes
    return replace(home, train=replace(home.train, x=x, y=y)).taking_part()


def trace(
    fed: Federation,
    algorithm: Algorithm,
    *,
    rounds: int,
    cohort: int,
    seed: int = 0,
    inside: bool = False,
) -> Trace:
    """Play some rounds twice, once on what ``tampered`` returns, and compare what the server saw.

    That is every tensor of every message, the number of bytes that each client of a cohort sent,
    and all leaves that the server holds after each round.
    """

    def seen(fed: Federation) -> Iterator[Tensor]:
        """Yield the tensors that a server sees, in one order."""
        state = algorithm.init(playing(algorithm, fed), seed)
        for t in range(rounds):
            state, report = play_round(algorithm, fed, state, round=t, seed=seed, cohort=cohort)
            for leaves in (report.messages, state.shared, state.optimizer, state.memory):
                yield from (leaves[name] for name in sorted(leaves))
            yield report.up

    total = changed = 0
    for one, other in zip(seen(fed), seen(tampered(fed, inside=inside)), strict=True):
        total += one.numel() * one.element_size()
        changed += int((_bytes(one) != _bytes(other)).sum())
    return Trace(total, changed)


def _bytes(t: Tensor) -> Tensor:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
