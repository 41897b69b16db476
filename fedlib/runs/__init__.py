"""What a run is: spec, key, run folder, resume."""

from fedlib.runs.course import assess, begun
from fedlib.runs.atomic import Damaged, DamagedWarning, StoreError
from fedlib.runs.exported import export, exported
from fedlib.runs.health import RunDiverged
from fedlib.runs.inventory import Entry, inventory
from fedlib.runs.result import Result
from fedlib.runs.run import rounds, run, run_with_state
from fedlib.runs.spec import Experiment
from fedlib.runs.store import find

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
