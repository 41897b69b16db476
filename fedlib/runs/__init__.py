"""What a run is: spec, key, run folder, resume."""

from fedlib.runs.atomic import Damaged as Damaged
from fedlib.runs.atomic import DamagedWarning as DamagedWarning
from fedlib.runs.atomic import StoreError as StoreError
from fedlib.runs.exported import export as export
from fedlib.runs.exported import exported as exported
from fedlib.runs.run import begun as begun
from fedlib.runs.run import rounds as rounds
from fedlib.runs.run import run as run
from fedlib.runs.run import run_with_state as run_with_state
from fedlib.runs.spec import Experiment as Experiment
from fedlib.runs.spec import Result as Result
from fedlib.runs.store import Entry as Entry
from fedlib.runs.store import RunDiverged as RunDiverged
from fedlib.runs.store import find as find
from fedlib.runs.store import inventory as inventory
