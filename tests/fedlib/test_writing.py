"""docs/ALGORITHMS.md: the hooks in the order of a round, and algorithms that are written there."""

import pytest
from conftest import make_federation
from playing import close, play

from fedlib import algorithms as alg
from fedlib import paths
from fedlib.engine import Algorithm
from fedlib.optim import sgd

PAGE = (paths.ROOT / "docs" / "ALGORITHMS.md").read_text()
CODE = [part.split("```")[0] for part in PAGE.split("```python")[1:]]
FAST = {"batch_size": 4, "epochs": 2, "client": sgd(0.1)}
WRITTEN = {"PersonalHead": alg.FedPer, "NearTheServer": alg.Ditto, "PerStep": alg.FedNova}


def test_the_page_has_every_hook():
    for name in (n for n in vars(Algorithm) if not n.startswith("_")):
        assert f"`{name}(" in PAGE or f"`{name}`" in PAGE, name


@pytest.mark.parametrize(("place", "name"), enumerate(WRITTEN, 1))
def test_an_algorithm_that_is_written_there_is_the_librarys(place, name):
    exec(compile(CODE[place], "example", "exec"), made := {"__name__": "example"})
    (one, _), (other, _) = (
        play(kind(**FAST), make_federation((6, 3, 9))) for kind in (made[name], WRITTEN[name])
    )
    close(one.server_params, other.server_params)
    close(one.client_params, other.client_params)


def test_a_plain_loop_over_the_batches_ends_where_the_engine_ends(capsys):
    exec(compile(CODE[-1], "example", "exec"), {})
    assert float(capsys.readouterr().out) < 1e-5
