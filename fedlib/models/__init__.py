"""Network architectures, and classifiers as pure functions of their parameters.

>>> net = models.FunctionalModel(MLP((8,)), (16, 16, 1), classes=10)
>>> [*net.init(seed=0)]
['base.1.weight', 'base.1.bias', 'head.weight', 'head.bias']
"""

from fedlib.models.architectures import (
    MLP, Architecture, FromFunction, LeNet, Params, ResNet, fedmix_lenet5,
)  # fmt: skip
from fedlib.models.batch import Batch, Statistics
from fedlib.models.functional_model import (
    FunctionalModel, add_prefix, map_experts, select_prefix, stack,
)  # fmt: skip
from fedlib.models.interception import is_statistic
from fedlib.models.text import BiLSTM, FastText, sparse_gradients
