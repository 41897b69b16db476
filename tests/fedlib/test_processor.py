"""The same bits on a maker's processors with AVX2, and nothing handed to torch that crashes there.

Each test is a process of its own: the instruction set is chosen when torch first computes, and what
is tested against ends a process.
"""

import os
import sys

import pytest
import torch
from conftest import alone

from fedlib import processor

pytestmark = pytest.mark.skipif(not processor.has_avx2(), reason="no x86-64 with AVX2")

GOLDEN = """
from fedlib import PINNED
from fedlib.algorithms import FedMix
from fedlib.models import LeNet
from fedlib.optim import adam
from fedlib.partition import Dirichlet, MatchedHoldout
from fedrun import Experiment, run
from fedlib.tasks import Task
import torch

torch.set_num_threads(1)
net, held_out = LeNet(channels=(8, 8), hidden=(32,), kernel=3), MatchedHoldout(200, 20, 30)
task = Task("digits", Dirichlet(clients=6, size=40), net, held_out)
method = FedMix(experts=3, epochs=2, server=adam(0.01), client=adam(0.003))
result = run(Experiment(task, method, rounds=3, cohort=4, evaluate_every=1), progress=False)
scores = [*result.curve("test_nll").values()]
print(PINNED, result.provenance["state"], " ".join(f"{s:.12f}" for s in scores))
"""
# Of torch 2.13.0's build for CPUs, on an EPYC without AVX-512 and on a Xeon with it: the final
# state, and the scores. MKL rounds differently on other makers' processors, unless "COMPATIBLE".
BITS = {
    "AuthenticAMD": "ae95101380c94a5c 2.294416385227 2.256888071696 2.220153003269 2.179622883267",
    "GenuineIntel": "8779e3ded3bdb4bc 2.294416385227 2.256888029310 2.220152876112 2.179622777303",
}

STRIDED = """
import torch
from torch import nn
from conftest import make_federation
from playing import play
from fedlib import FedAvg
from fedlib.models import FromFunction, ResNet

class Made(nn.Linear):
    def forward(self, x):
        return nn.functional.conv2d(x, self.weight[:, :, None, None], stride=2)

def foreign(kind):
    strided = {"called": Made(4, 8), "plain": nn.Conv2d(4, 8, 1, stride=(1, 2)),
               "grouped": nn.Conv2d(4, 32, 1, stride=2, groups=4)}[kind]
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), strided, nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten())

torch.set_num_threads(1)
kinds = (("kind", kind) for kind in ("called", "plain", "grouped"))
kinds = [FromFunction("__main__:foreign", (pair,)) for pair in kinds]
for family in (ResNet(blocks=1, widths=(4, 8)), *kinds):
    fed = make_federation((60, 60), model=family, shape=(16, 16, 3))
    for chunk in (1, 2):
        play(FedAvg(batch_size=10, epochs=2), fed, 2, chunk=chunk)
print("ok")
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13.0"), reason="bits of torch 2.13.0")
@pytest.mark.parametrize("first", ["", "import torch; torch.manual_seed(0)\n"])
def test_a_short_fedmix_has_the_golden_bits(first):
    """Convolutions, dense layers, Adam at both ends and evaluation; torch may be imported first."""
    maker = next((name for name in BITS if name in processor.CPUINFO.read_text()), "")
    if not maker:
        pytest.skip("bits of AMD's and Intel's processors")
    said = alone(first + GOLDEN, FEDLIB_PIN="1")
    assert said.stdout.split() == ["True", *BITS[maker].split()], said.stderr


@pytest.mark.parametrize("chosen", ["torch.ones(2) + 1", "torch.ones(64, 64) @ torch.ones(64, 64)"])
def test_a_torch_that_has_computed_is_left_alone(chosen):
    """MKL has chosen then, and on a processor with AVX-512 ATen has, too."""
    asks = f"""
import os, torch
{chosen}
from fedlib import PINNED
from fedlib.processor import PINS
wide = torch.backends.cpu.get_cpu_capability() != "AVX2"
print(PINNED, PINNED == all(n in os.environ for n in PINS), wide)
"""
    pinned, same, wide = alone(asks, FEDLIB_PIN="1").stdout.split()
    assert same == "True"
    assert pinned == "False" or (wide == "False" and "@" not in chosen)


LEFT = """
import os, torch
before = dict(os.environ)
if {asked}:
    import fedrun
    for moment in fedrun.simulate(fedrun.tiny):
        pass
print(os.environ == before, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
"""


@pytest.mark.slow
def test_a_users_torch_is_left_as_it_is():
    """By a run of the library: its instructions, its threads, and what other libraries may read."""
    plain, used = (alone(LEFT.format(asked=asked)) for asked in (False, True))
    assert plain.stdout.split()[0] == "True" and used.stdout == plain.stdout, used.stderr


STARTED = """
from fedlib.processor import pinned
from fedrun.workers import Processes
pool, _ = Processes(1, {}, None)._hired()
print(pinned(), pool.submit(pinned).result())
pool.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("first", "held"), [("", False), ("import companion", True)])
def test_processes_that_a_pinned_one_starts_are_pinned(first, held):
    """Workers of a sweep among them."""
    said = alone(f"{first}{STARTED}")
    assert said.stdout.split() == [str(held)] * 2, said.stderr


def test_strided_convolutions_of_few_channels_train():
    """oneDNN corrupts the heap in their gradient with AVX2 and channels last."""
    here = {"PYTHONPATH": os.pathsep.join(sys.path), "ONEDNN_MAX_CPU_ISA": "AVX2"}
    said = alone(STRIDED, **here)
    assert (said.returncode, said.stdout) == (0, "ok\n"), said.stderr
