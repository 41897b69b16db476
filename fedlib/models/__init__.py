"""Models, written for one batch of examples."""

from fedlib.models.families import MLP, Family, LeNet, Module, Params, ResNet, fedmix_lenet5
from fedlib.models.lifted import AFTER, USED, is_statistic
from fedlib.models.net import Net, each, named, part, stack, widened
from fedlib.models.text import BiLSTM, FastText
