"""When numbers stop being finite: who is to blame, and what is known until then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlib.engine import Report, State, TrainingDiverged
from fedlib.federation import Federation


class RunDiverged(TrainingDiverged):
    """A run stopped because a number was not finite; all before that is stored.

    ``round`` is the round that failed (so many were completed), ``clients`` who failed in it (none
    if it was the server), ``metrics`` the last finite training loss and validation accuracy,
    ``folder`` the run folder.
    """

    round: int = 0
    metrics: dict[str, float]
    folder: str = ""

    @classmethod
    def of(cls, failure: dict[str, Any], folder: str) -> RunDiverged:
        """Return the error for a failure as it is stored."""
        metrics = dict(failure.get("metrics", {}))
        last = ", ".join(f"{n} {v:.4g}" for n, v in metrics.items()) or "none"
        error = cls(
            f"{failure.get('message', 'a number is not finite')}; last finite metrics: {last}. "
            f"The {failure.get('round', 0)} rounds before it are stored in {folder}. The same run "
            "would fail again: change a rate, or ask with retry.",
            failure.get("clients", ()),
        )
        error.round = int(failure.get("round", 0))
        error.metrics, error.folder = metrics, folder
        return error


def check_finite(fed: Federation, state: State, report: Report, round: int) -> None:
    """Raise TrainingDiverged unless all that a round has changed is finite.

    The loss of a client's last step is computed before that step, and a server's optimiser may
    explode on finite messages: so the leaves are looked at, too, with one reduction each.
    """
    rows = torch.as_tensor(report.rows, device=fed.device)
    leaves = {**state.shared, **{n: t[rows] for n, t in state.local.items()}}
    # torch.optim keeps its step counts on the CPU, whatever the device of what it moves.
    kept = {**state.optimizer, **state.memory}
    memory = {n: t for n, t in kept.items() if t.device.type == fed.device.type}
    if not leaves or _finite([*leaves.values(), *memory.values()]):
        return
    sent = {**report.messages, **{n: t[rows] for n, t in state.local.items()}}
    bad = torch.zeros(len(rows), dtype=torch.bool, device=fed.device)
    for leaf in sent.values():
        bad |= ~leaf.isfinite().flatten(1).all(1) if leaf.ndim > 1 else ~leaf.isfinite()
    if bool(bad.any()):
        who = fed.ids[report.rows[bad.cpu().numpy()]].tolist()
        named = ", ".join(map(str, who))
        raise TrainingDiverged(f"round {round}: the weights of client {named} are not finite", who)
    names = [n for n, t in {**leaves, **memory}.items() if not bool(t.isfinite().all())]
    raise TrainingDiverged(
        f"round {round}: after the server's step {', '.join(names[:3])} is not finite"
    )


def _finite(leaves: list[Tensor]) -> bool:
    real = [t.isfinite().all() for t in leaves if t.is_floating_point() and t.numel()]
    return not real or bool(torch.stack(real).all())
