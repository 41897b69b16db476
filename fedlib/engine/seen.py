"""What frozen leaves say of a client's examples: computed once per client and phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import costs
from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation, Table
from fedlib.models import Params


class Known(NamedTuple):
    """What frozen leaves say of a client's examples, columns ``[B, ...]`` by name.

    What is in ``beside`` is looked up beside the examples; what is in ``instead``, vectors, takes
    their place, so that the loss finds no ``x`` in its batch.
    """

    beside: Params
    instead: Params


NOTHING = Known({}, {})


@dataclass(frozen=True, eq=False)
class Seen:
    """What is known of some clients' examples, columns ``[clients, examples, ...]`` by name.

    ``validation`` is empty unless early stopping watches the loss. ``instead`` says that vectors
    take the place of the examples, so that no convolution is left.
    """

    train: Params = field(default_factory=dict)
    validation: Params = field(default_factory=dict)
    instead: bool = False

    def rows(self, start: int, end: int) -> Seen:
        """Return what is known of the examples of some of the clients."""
        train, held = (
            {n: t[start:end] for n, t in columns.items()}
            for columns in (self.train, self.validation)
        )
        return Seen(train, held, self.instead)


UNSEEN = Seen()


def look(
    fed: Federation,
    method: Callable[..., Known],
    rows: Tensor,
    frozen: Params,
    context: Params,
    common: Params,
    *,
    validation: bool,
) -> Seen:
    """Ask ``method`` once about every example of some clients: training, and validation if asked.

    ``method`` is a function of ONE client ``(frozen, context, batch, common)``. ``frozen`` and
    ``context`` carry the client axis and hold no leaf that the phase trains, so that what is said
    of an example stays true. Nothing is known of examples that are augmented, as these differ from
    step to step.
    """
    if fed.train.augment is not None:
        return UNSEEN
    size = costs.asked_together(fed)
    parts = frozen, context, common
    train, instead = _columns(fed.train, method, rows, size, *parts)
    held = _columns(fed.validation, method, rows, size, *parts)[0] if train and validation else {}
    return Seen(train, held, instead)


def _columns(
    table: Table,
    method: Callable[..., Known],
    rows: Tensor,
    size: int,
    frozen: Params,
    context: Params,
    common: Params,
) -> tuple[Params, bool]:
    """Return columns ``[clients, examples, ...]``, and whether they are instead of the examples.

    Zero in the padding; ``size`` rows at a time.
    """
    sizes = table.sizes[rows.cpu().numpy()]
    out: Params = {}
    instead = False
    for start in range(0, len(rows), size):
        end = min(start + size, len(rows))
        if not sizes[start:end].any():
            continue
        own, ctx = ({n: t[start:end] for n, t in part.items()} for part in (frozen, context))
        ask, at = vmap_clients(method, end - start, common=1), 0
        with torch.no_grad():
            for batch in table.blocks(rows[start:end], costs.AT_ONCE):
                said: Known = ask(own, ctx, batch, common)
                instead = bool(said.instead)
                for name, t in (said.beside | said.instead).items():
                    if name not in out:
                        shape = len(rows), int(np.max(sizes)), *t.shape[2:]
                        out[name] = t.new_zeros(shape)
                    out[name][start:end, at : at + t.shape[1]] = t
                if not out:
                    return {}, False
                at += costs.AT_ONCE
    return out, instead
