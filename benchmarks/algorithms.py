"""Small versions of all algorithms that the library exports, including new ones."""

from typing import Any

from fedlib import algorithms as alg
from fedlib.optim import adam


def every(**options: Any) -> dict[str, Any]:
    """Return every exported algorithm by name; slow ones have fewer steps.

    Args:
        options: fields of all of them, such as ``batch_size`` and ``client``.
    """
    mixed = alg.FedMix(experts=2, personal_bias=True, **options)
    trained = options | {"epochs": 2, "client": adam(0.01)}
    special = [
        alg.FedGen(noise=4, hidden=8, steps=5, **options),
        alg.Mixture(**trained),
        alg.NewClients(of=alg.Personal(local=("head.",), **options), **options),
        alg.PMMoE(of=alg.FedPer(**options), **trained),
        alg.PrunedFedMix(eta=0.95, phi_scale=0.5, **options),
        alg.VAEDensity(of=mixed, hidden=(8,), latent=2, **trained),
        alg.Private(of=alg.FedAvg(**options)),
    ]
    found = {type(algorithm).__name__: algorithm for algorithm in special}
    return {n: found.get(n) or getattr(alg, n)(**options) for n in alg.__all__}
