"""Models, written for one batch of examples."""

from fedlib.models.batch import Batch, Statistics
from fedlib.models.families import MLP, Family, LeNet, Module, Params, ResNet, fedmix_lenet5
from fedlib.models.functional import is_statistic
from fedlib.models.net import Net, add_prefix, map_experts, select_prefix, stack, widened
from fedlib.models.text import BiLSTM, FastText
