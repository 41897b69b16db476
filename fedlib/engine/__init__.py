"""Cohort training and evaluation. Knows no algorithm by name and reads no file."""

from fedlib.engine.costs import BLOCK as BLOCK
from fedlib.engine.evaluate import Scores as Scores
from fedlib.engine.evaluate import encode as encode
from fedlib.engine.evaluate import evaluate as evaluate
from fedlib.engine.evaluate import evaluate_everywhere as evaluate_everywhere
from fedlib.engine.evaluate import evaluate_global as evaluate_global
from fedlib.engine.evaluate import tabulate as tabulate
from fedlib.engine.program import vmap_clients as vmap_clients
from fedlib.engine.protocol import FEATURES as FEATURES
from fedlib.engine.protocol import Algorithm as Algorithm
from fedlib.engine.protocol import EarlyStop as EarlyStop
from fedlib.engine.protocol import Phase as Phase
from fedlib.engine.protocol import Prediction as Prediction
from fedlib.engine.protocol import State as State
from fedlib.engine.protocol import Update as Update
from fedlib.engine.protocol import noise_of as noise_of
from fedlib.engine.protocol import playing as playing
from fedlib.engine.protocol import predicting as predicting
from fedlib.engine.rounds import Report as Report
from fedlib.engine.rounds import cohort_size as cohort_size
from fedlib.engine.rounds import play_round as play_round
from fedlib.engine.rounds import select as select
from fedlib.engine.train import TrainingDiverged as TrainingDiverged
from fedlib.federation import UNSEEN as UNSEEN
from fedlib.federation import Known as Known
