"""`tune`."""

from __future__ import annotations

from argparse import Namespace

from papers.adaptive import tuning
from papers.recipes import ADAPTIVE, Adaptive


def tune(asked: Namespace) -> None:
    """Tune adaptive experts in four stages, print the trials and keep them with the project."""
    ((dataset, setting),) = ADAPTIVE.settings(asked.scale).items()
    assert isinstance(setting, Adaptive)
    best, table = tuning.tune(
        setting.at(min(setting.ps)),
        tuning.spaces(asked.scale),
        trials=asked.trials,
        workers=asked.workers,
        address=asked.address,
        device=asked.device,
    )
    print(table.to_string(index=False))
    print(f"tuned: {best}")
    file = tuning.where(f"{dataset}_{asked.scale}")
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
    print(f"kept in {file}")
