"""What a run is: spec, key, run folder, resume."""

from fedlib.runs.atomic import Damaged, DamagedWarning, StoreError
from fedlib.runs.exported import export, exported
from fedlib.runs.run import begun, rounds, run, run_with_state
from fedlib.runs.spec import Experiment, Result
from fedlib.runs.store import Entry, RunDiverged, diverged, find, inventory
