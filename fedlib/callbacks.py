"""Three callbacks for ``fedlib.runs.run``, which calls each with a ``Moment`` after every round.

Any function of a moment is one, and before the first round it is called, too: of that there is no
training loss, and test accuracies are of the rounds that are scored. What it returns true for stops
the run, which goes on when it is asked for again.

>>> stop = lambda moment: moment.metrics.get("train_loss", 9.0) < 5.0
>>> result = run(tiny, callbacks=[CSV(Path(tempfile.mkdtemp()) / "run.csv"), stop])
>>> max(result.curve("train_loss"))
1
"""

import csv
from pathlib import Path
from typing import Any

from fedlib.runs.run import Moment
from fedlib.values import to_dict


class CSV:
    """Write a row for every metric and round into a file: round, metric, value.

    A run that goes on writes on after the rounds before; one that begins overwrites the file.

    Args:
        path: the file; its folder is there.

    >>> write = CSV(Path(tempfile.mkdtemp()) / "run.csv")
    >>> for moment in simulate(tiny):
    ...     write(moment)
    >>> write.path.read_text().splitlines()[:2]
    ['round,metric,value', '0,examples,20.0']
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self._next = Path(path), -1

    def __call__(self, moment: Moment) -> None:
        """Write what was logged of a round."""
        rows = [[moment.round, name, value] for name, value in moment.metrics.items()]
        if moment.round == self._next:
            self._write("a", rows)
        else:
            self._write("w", [["round", "metric", "value"], *self._before(moment.round), *rows])
        self._next = moment.round + 1

    def _before(self, round: int) -> list[list[str]]:
        """Return the rows of rounds before one: later ones are told again."""
        if not round or not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            told = [row for row in csv.reader(file) if row and row[0].isdecimal()]
        return [row for row in told if int(row[0]) < round]

    def _write(self, mode: str, rows: list[list[Any]]) -> None:
        with self.path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


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
