"""Callbacks of ``run``: a CSV file, TensorBoard, and Weights & Biases. Copy what you need.

A callback is any function of a ``RoundInfo``. ``run`` calls it before the first round, where there
is no training loss yet, and after every round; accuracies are there in the rounds that are
evaluated. If it returns a true value, the run stops, and goes on when it is asked for again.

python examples/callbacks.py
"""

import csv
import tempfile
from pathlib import Path
from typing import Any

from fedlib.values import to_dict
from fedrun import RoundInfo, run, tiny


def accurate(moment: RoundInfo) -> bool:
    """Stop the run when the mean test accuracy of the clients is above 0.9."""
    return moment.metrics.get("test_accuracy", 0.0) > 0.9


class CSV:
    """Write a row for every round and metric into a file: round, metric, value.

    A run that is resumed appends to the file; a run that starts overwrites it.

    Args:
        path: the file. Its folder must exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self._next = Path(path), -1

    def __call__(self, moment: RoundInfo) -> None:
        """Write the metrics of a round."""
        rows = [[moment.round, name, value] for name, value in moment.metrics.items()]
        if moment.round == self._next:
            self._write("a", rows)
        else:
            self._write("w", [["round", "metric", "value"], *self._before(moment.round), *rows])
        self._next = moment.round + 1

    def _before(self, round: int) -> list[list[str]]:
        """Return the rows of earlier rounds. Later ones are played, and written, again."""
        if not round or not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row and row[0].isdecimal()]
        return [row for row in rows if int(row[0]) < round]

    def _write(self, mode: str, rows: list[list[Any]]) -> None:
        with self.path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


class TensorBoard:
    """Log every metric by round for TensorBoard. Needs ``pip install tensorboard``.

    Args:
        folder: the folder of event files, which ``tensorboard --logdir`` is given.
    """

    def __init__(self, folder: str | Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def __call__(self, moment: RoundInfo) -> None:
        """Log the metrics of a round."""
        for name, value in moment.metrics.items():
            self._writer.add_scalar(name, value, moment.round)
        self._writer.flush()


class WandB:
    """Log every metric by round to Weights & Biases. Needs ``pip install wandb``.

    Args:
        options: arguments of ``wandb.init``, such as ``project``, ``name`` and ``mode``. Default:
            ``config`` is the experiment.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._run: Any = None

    def __call__(self, moment: RoundInfo) -> None:
        """Log the metrics of a round. The first call starts a run of wandb, the last ends it."""
        import wandb

        options = {"config": to_dict(moment.experiment), **self._options}
        self._run = self._run or wandb.init(**options)
        self._run.log(moment.metrics, step=moment.round)
        if moment.round == moment.experiment.rounds:
            self._run.finish()


if __name__ == "__main__":
    table = CSV(Path(tempfile.mkdtemp()) / "run.csv")
    run(tiny, callbacks=[table, accurate], again=True)  # a stored run would not be played again
    print(table.path.read_text("utf-8"))
