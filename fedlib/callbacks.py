"""Three callbacks for ``fedlib.runs.run``: each is called with a ``Moment`` after every round.

Any function of a moment is one. What it returns true for stops the run, which goes on when it is
asked for again::

    run(experiment, callbacks=[CSV("run.csv"), lambda m: m.metrics["train_loss"] < 0.1])
"""

import csv
from pathlib import Path
from typing import Any

from fedlib.runs.run import Moment
from fedlib.values import to_dict


class CSV:
    """Write a row for every metric and round into a file: round, metric, value.

    A run that goes on writes on; one that begins overwrites the file.

    Args:
        path: the file; its folder is there.

    >>> write = CSV(Path(tempfile.mkdtemp()) / "run.csv")
    >>> for moment in simulate(tiny):
    ...     write(moment)
    >>> write.path.read_text().splitlines()[:2]
    ['round,metric,value', '0,examples,20.0']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __call__(self, moment: Moment) -> None:
        """Write what was logged of a round."""
        rows = [(moment.round, name, value) for name, value in moment.metrics.items()]
        head = [] if moment.round else [("round", "metric", "value")]
        with self.path.open("a" if moment.round else "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([*head, *rows])


class TensorBoard:
    """Show every metric in TensorBoard, by round (needs the package ``tensorboard``).

    Args:
        folder: what ``tensorboard --logdir`` is given.

    >>> watch = TensorBoard("logs")  # doctest: +SKIP
    >>> result = run(tiny, callbacks=[watch])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def __call__(self, moment: Moment) -> None:
        """Add what was logged of a round."""
        for name, value in moment.metrics.items():
            self._writer.add_scalar(name, value, moment.round)
        self._writer.flush()


class WandB:
    """Send every metric to Weights & Biases, by round (needs the package ``wandb``).

    Args:
        options: as for ``wandb.init``: project, name, mode and others.

    >>> result = run(tiny, callbacks=[WandB(project="mine", mode="offline")])  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._run: Any = None

    def __call__(self, moment: Moment) -> None:
        """Send what was logged of a round; begin with the first, and end with the last one."""
        import wandb

        options = {"config": to_dict(moment.experiment), **self._options}
        self._run = self._run or wandb.init(**options)
        self._run.log(moment.metrics, step=moment.round)
        if moment.round == moment.experiment.rounds:
            self._run.finish()
