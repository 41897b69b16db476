"""Whether the check of opting out finds what a server would see of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_opt_out import TASK, patients, same_bits

from fedlib import MLP, FastText, FedAvg, LocalHoldout, NaturalPartition, OptOut, Task
from fedlib import data as datasets
from fedlib.federation import OPTED_IN
from papers.specialists.opting import tampered, trace

KINDS = {"numbers": MLP((5,)), "pictures": MLP((5,)), "texts": FastText(12, 4)}


@pytest.mark.parametrize("opt_out", [OptOut(0.5), OptOut(1.0, share=0.5)], ids=["clients", "share"])
def test_the_check_finds_no_changed_byte_and_its_control_many(opt_out):
    task, algorithm = replace(TASK, opt_out=opt_out), FedAvg(batch_size=10)
    found = trace(task, algorithm, rounds=2, cohort=3)
    control = trace(task, algorithm, rounds=2, cohort=3, inside=True)
    leaves = 4 * task.build(0).net.parameters()
    assert found.bytes == control.bytes == 2 * (3 * leaves + leaves + 3 * 8)
    assert found.changed == 0 < control.changed


def test_only_what_opted_out_is_tampered_with():
    task = replace(TASK, opt_out=OptOut(1.0, share=0.5))
    fed, other, control = task.build(0), tampered(task, 0), tampered(task, 0, inside=True)
    assert torch.equal(other.train.x, fed.train.x) and torch.equal(other.train.y, fed.train.y)
    assert torch.equal(other.validation.x, fed.validation.x)
    assert torch.equal(control.train.x, 255 - fed.train.x)
    assert torch.equal(control.validation.x, fed.validation.x)
    home, changed, controlled = (f.full_view().train for f in (fed, other, control))
    out = home.indices[home.side[OPTED_IN] == 0]
    assert len(out) and torch.equal(changed.y[out], (home.y[out] + 1) % fed.classes)
    assert torch.equal(controlled.x[out], home.x[out])
    assert torch.equal(other.test.y, (fed.test.y + 1) % fed.classes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opt_out", [OptOut(0.25), OptOut(1.0, share=0.5)], ids=["all", "some"])
def test_nothing_is_fitted_to_what_opted_out_or_is_tested_on(kind, opt_out, places):
    """Whatever becomes of them before they are added, the others' inputs and model stay as is."""
    task = (
        "patients",
        NaturalPartition("hospital"),
        KINDS[kind],
        LocalHoldout(test=0.3, validation=0.2),
    )
    x, y, columns = patients(kind)
    datasets.add("patients", (x, y, columns))
    task = Task(*task, opt_out=opt_out)
    _, division, inside = task.divided(0)
    rows = division.parts["train"].flat[inside]
    fed, control = task.build(0), tampered(task, 0, inside=True)
    others, poisoned = np.setdiff1d(np.arange(160), rows), x.copy()
    held = division.parts["validation"]
    others = np.setdiff1d(others, held.flat[np.isin(held.owners, fed.participants)])
    poisoned[others] = {"numbers": 5000, "pictures": 255}.get(kind, "zzz bruise bruise cold")
    datasets.add("patients", (poisoned, y, columns))
    again = task.build(0)
    for one, other in ((fed, again), (fed, tampered(task, 0))):
        for split in ("train", "validation"):
            a, b = (
                next(getattr(f, split).blocks(f.by_id[f.participants], 9)) for f in (one, other)
            )
            assert all(same_bits(a[n], b[n]) for n in ("x", "y", "weight"))
    assert not torch.equal(fed.train.x, control.train.x)
    found = trace(task, FedAvg(batch_size=5), rounds=2, cohort=2)
    assert found.changed == 0 < found.bytes
