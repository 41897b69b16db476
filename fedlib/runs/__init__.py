"""What a run is: spec, key, run folder, resume."""

from fedlib.runs.atomic import Damaged, DamagedWarning, StoreError
from fedlib.runs.exported import export, exported
from fedlib.runs.frames import Compared, compare, frame
from fedlib.runs.run import Moment, built, initial_state, rounds, run, run_with_state, simulate
from fedlib.runs.spec import CohortEarlyStop, Experiment, Result
from fedlib.runs.store import Entry, RunDiverged, diverged, find, inventory
from fedlib.runs.using import evaluate, predict
