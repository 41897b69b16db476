"""Everything that is needed to write an algorithm, in one import.

    from fedlib.algorithms.interface import Batch, Net, Params, State, value

``Net`` is the network as pure functions of its parameters, the first argument of a loss. All other
names have one meaning in the whole library: types of the engine (``Phase``, ``State``,
``Prediction``, ...) and of values, functions of parameters by name (``add_prefix``, ...) and the
arithmetic of ``algorithms.arithmetic``. Their documentation is where they are defined.
"""

from fedlib.algorithms.arithmetic import (
    at_label, beside, broadcast_to_clients, data_share, drop_prefix, entropy, mean,
    mean_cross_entropy, mean_of, normalised, own_params, to_device, weighted_sum,
)  # fmt: skip
from fedlib.engine import (
    BLOCK, Algorithm, Cohort, EarlyStop, Phase, Prediction, State, Update, encode, play_round,
    tabulate, uses_precomputed, vmap_clients,
)  # fmt: skip
from fedlib.engine.program import one_client
from fedlib.engine.protocol import (
    DROPOUT, FEATURES, LOG_DENSITY, SHAPES, Bytes, equal_bytes, nbytes,
)  # fmt: skip
from fedlib.federation import NOTHING, OPTED_IN, ClientData, Federation, Precomputed
from fedlib.models import (
    Architecture, Batch, Params, Statistics, add_prefix, is_statistic, map_experts, select_prefix,
    stack,
)  # fmt: skip
from fedlib.models import FunctionalModel as Net
from fedlib.models.architectures import params_of, seeded
from fedlib.optim import Optimizer, adam, sgd
from fedlib.randomness import generator, torch_seed
from fedlib.values import (
    NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Share, value, wrapped,
)  # fmt: skip
