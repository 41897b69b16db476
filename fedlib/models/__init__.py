"""Models, written for one batch of examples."""

from fedlib.models.families import ACTIVATIONS as ACTIVATIONS
from fedlib.models.families import INITS as INITS
from fedlib.models.families import MLP as MLP
from fedlib.models.families import AutoEncoder as AutoEncoder
from fedlib.models.families import Family as Family
from fedlib.models.families import GateNet as GateNet
from fedlib.models.families import LeNet as LeNet
from fedlib.models.families import Module as Module
from fedlib.models.families import Params as Params
from fedlib.models.families import ResNet as ResNet
from fedlib.models.families import drawn as drawn
from fedlib.models.families import fedmix_lenet5 as fedmix_lenet5
from fedlib.models.lifted import AFTER as AFTER
from fedlib.models.lifted import USED as USED
from fedlib.models.lifted import is_statistic as is_statistic
from fedlib.models.net import Net as Net
from fedlib.models.net import each as each
from fedlib.models.net import named as named
from fedlib.models.net import part as part
from fedlib.models.net import stack as stack
from fedlib.models.net import widened as widened
from fedlib.models.text import BiLSTM as BiLSTM
from fedlib.models.text import FastText as FastText
