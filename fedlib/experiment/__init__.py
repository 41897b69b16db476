"""What a run is: spec, key, run folder, resume."""

from fedlib.experiment.course import assess, begun
from fedlib.experiment.disk import Damaged, DamagedWarning, StoreError
from fedlib.experiment.exported import export, exported
from fedlib.experiment.health import RunDiverged
from fedlib.experiment.inventory import Entry, inventory
from fedlib.experiment.result import Result
from fedlib.experiment.run import rounds, run, run_with_state
from fedlib.experiment.spec import Experiment
from fedlib.experiment.store import find

__all__ = [
    "Damaged",
    "DamagedWarning",
    "Entry",
    "Experiment",
    "Result",
    "RunDiverged",
    "StoreError",
    "assess",
    "begun",
    "export",
    "exported",
    "find",
    "inventory",
    "rounds",
    "run",
    "run_with_state",
]
