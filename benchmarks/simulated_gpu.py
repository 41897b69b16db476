"""A simulated GPU: tensors that report the device cuda:0 and are computed on the CPU.

    python -m benchmarks.simulated_gpu

prints the cost of a step and of a scored round, by algorithm.

A tensor on the GPU is a wrapper around one of the CPU. All calls of torch are dispatched to
``SimulatedGPU``, which refuses what a GPU would refuse (tensors of mixed devices), and counts the
cost: ``kernels`` started, ``copies`` from the host, and ``waits``, in which the host needs a number
from the GPU. Views and shapes cost nothing.

Below Python, a wrapper is a meta tensor, the only kind that a torch without CUDA can index and
differentiate without data; Python sees a tensor on cuda.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from fedlib.algorithms import GPFL, MOON, SCAFFOLD, FedAvg, FedCP, FedMix
from fedlib.engine import play_round
from fedlib.federation import ClientData, Federation
from fedlib.models import FunctionalModel, LeNet
from fedlib.partition import IID, MatchedHoldout
from fedlib.tasks import Task
from fedrun import Experiment
from fedrun.train import RunOptions, Training

DEVICE, BELOW = torch.device("cuda:0"), torch.device("meta")
THERE = (DEVICE.type, BELOW.type)
aten = torch.ops.aten
# Kernels of a GPU also accept indices on the host, which are copied, and tensors without axes.
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
           aten._index_put_impl_.default}  # fmt: skip
FREE = {aten.detach.default, aten.alias.default, aten.empty.memory_format,
        aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default,
        aten._unsafe_view.default, aten.lift_fresh.default}  # fmt: skip


class OnGPU(Tensor):
    """A tensor that reports to be on the GPU."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=BELOW,
        )

    def __init__(self, inner):
        self.inner = inner

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return SimulatedGPU.current.called(func, args, kwargs or {})


class SimulatedGPU(TorchDispatchMode):
    """The simulated GPU; ``counts`` has the number of kernels, copies and waits."""

    current = None

    def __init__(self):
        super().__init__()
        self.counts, SimulatedGPU.current = Counter(), self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.called(func, args, kwargs or {})

    def called(self, func, args, kwargs):
        """Compute a call on the CPU, and count its cost if it concerns the GPU."""
        given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        ours = [t for t in given if isinstance(t, OnGPU)]
        device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        there = bool(ours) if device is None else device.type in THERE
        if not ours and not there:
            return func(*args, **kwargs)
        host = [t for t in given if not isinstance(t, OnGPU)]
        self._count(func, kwargs, ours, host, there)
        plain = tree_map(lambda t: t.inner if isinstance(t, OnGPU) else t, (args, kwargs))
        if device is not None:
            plain[1]["device"] = torch.device("cpu")
        found = func(*plain[0], **plain[1])
        if torch.Tag.inplace_view in func.tags:  # such as squeeze_: change the wrapper's shape, too
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        same = {id(t.inner): t for t in ours}
        return tree_map(lambda t: self._placed(t, there, same), found)

    def _placed(self, t, there, same):
        if not (isinstance(t, Tensor) and there):
            return t
        return same[id(t)] if id(t) in same else OnGPU(t)

    def _count(self, func, kwargs, ours, host, there):
        if func is aten._local_scalar_dense.default or (ours and not there):
            self.counts["waits"] += 1
        elif func in (aten._to_copy.default, aten.copy_.default) and host:
            if not there or not ours or func is aten._to_copy.default:
                self.counts["copies"] += 1
            else:
                self.counts["copies" if isinstance(ours[0], OnGPU) else "waits"] += 1
        elif func is aten.nonzero.default or func is aten._unique2.default:
            self.counts["waits"] += 1  # the host needs the size of the result
            self.counts["kernels"] += 1
        elif func is aten._to_copy.default and kwargs.get("dtype", ours[0].dtype) == ours[0].dtype:
            pass  # it is on the GPU already
        elif not (func.is_view or func in FREE):
            self.counts["kernels"] += 1
            if ours and [t for t in host if t.ndim]:
                if func not in INDEXED:
                    raise RuntimeError(f"{func}: some tensors are on {DEVICE}, others on the host")
                self.counts["copies"] += 1


@contextmanager
def simulated_gpu() -> Iterator[SimulatedGPU]:
    """Simulate a GPU within a block."""
    real = torch._C.TensorBase.device.__get__
    said = property(lambda t: DEVICE if real(t) == BELOW else real(t))
    on_gpu = property(lambda t: real(t) == BELOW)

    def through_host(make):
        """Return a constructor of tensors that bypasses the dispatcher, followed by a copy."""

        def made(data, *args, device=None, **named):
            t = data if isinstance(data, OnGPU) else make(data, *args, **named)
            return t if device is None else t.to(device)

        return made

    with (
        patch.object(torch, "tensor", through_host(torch.tensor)),
        patch.object(torch, "as_tensor", through_host(torch.as_tensor)),
        patch("torch.cuda._lazy_init", lambda: None),
        patch.object(Tensor, "device", said, create=True),
        patch.object(Tensor, "is_cuda", on_gpu, create=True),
        SimulatedGPU() as there,
    ):
        yield there


def placed(fed: Federation) -> Federation:
    """Return a federation on the GPU."""
    net = FunctionalModel(fed.net._spec, fed.net.shape, fed.net.classes, DEVICE)
    names = [f.name for f in fields(fed) if isinstance(getattr(fed, f.name), ClientData)]
    tables = {name: _table(getattr(fed, name)) for name in names}
    return replace(fed, net=net, device=DEVICE, **tables)


SHOWN = (FedAvg, MOON, SCAFFOLD, FedCP, GPFL, FedMix)


def main() -> None:
    """Print the cost of a step (a round of two epochs minus one of one), and of a scored round."""
    held = MatchedHoldout(pool=200, validation=20, test=30)
    task = Task("digits", IID(clients=10, size=40), LeNet(hidden=(32,)), held)
    print(f"LeNet, SGD, ten clients{'':<12}{'kernels':>9}{'copies':>9}{'waits':>9}")
    for kind in SHOWN:
        once, twice, scored = (
            asked(task, kind(epochs=epochs, batch_size=10), score)
            for epochs, score in ((1, False), (2, False), (1, True))
        )
        steps = Counter({n: (twice[n] - once[n]) / 4 for n in NAMES})  # 40 examples in tens
        for what, counts in (("a step", steps), ("a scored round", scored)):
            numbers = "".join(f"{counts[n]:>9.4g}" for n in NAMES)
            print(f"{kind.__name__:<16}{what:<18} {numbers}")


NAMES = ("kernels", "copies", "waits")


def asked(task: Task, algorithm: Any, score: bool) -> Counter[str]:
    """Return the cost of one round; with ``score``, also of its evaluation and log."""
    with simulated_gpu() as there:
        fed = placed(task.build(0))
        training = Training(Experiment(task, algorithm, 9, 10, evaluate_every=1), fed, RunOptions())
        training.state = state = algorithm.init(fed, 0)
        there.counts.clear()
        state, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=10, score=score)
        if score:
            training.log_round(state, 1, report)
        return Counter(there.counts)


def _table(table: ClientData) -> ClientData:
    moved = {n: t.to(DEVICE) for n, t in vars(table).items() if isinstance(t, Tensor)}
    return replace(table, **moved, side={n: t.to(DEVICE) for n, t in table.side.items()})


if __name__ == "__main__":
    main()
