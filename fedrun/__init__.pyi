# What fedrun offers, for type checkers: __init__.py imports it when it is asked for.

from fedrun.baseline import majority_accuracy as majority_accuracy
from fedrun.checking import batches as batches
from fedrun.example import tiny as tiny
from fedrun.experiment import CohortEarlyStop as CohortEarlyStop
from fedrun.experiment import Experiment as Experiment
from fedrun.experiment import Result as Result
from fedrun.files import StoreError as StoreError
from fedrun.frames import compare as compare
from fedrun.frames import frame as frame
from fedrun.grids import best as best
from fedrun.grids import grid as grid
from fedrun.store import RunDiverged as RunDiverged
from fedrun.store import find_result as find_result
from fedrun.store import list_runs as list_runs
from fedrun.sweeps import SweepFailed as SweepFailed
from fedrun.sweeps import sweep as sweep
from fedrun.train import RoundInfo as RoundInfo
from fedrun.train import run as run
from fedrun.train import run_with_state as run_with_state
from fedrun.train import simulate as simulate
from fedrun.using import evaluate as evaluate
from fedrun.using import predict as predict
