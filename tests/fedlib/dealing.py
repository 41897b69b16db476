"""What tests of partitions share: labels of equal classes, a deal, and what names a table."""

import hashlib

import numpy as np

from fedlib import partition as parts

# One of every scheme, for a few examples of six classes or more.
REQUESTS = [
    parts.Dirichlet(5, 0.5, 12), parts.IID(5, 12), parts.QuantitySkew(4, 2.0, 3),
    parts.ClassDirichlet(4, 1.0, shared=0.2, seed=None), parts.MajorityClasses(5, 12, 0.5),
    parts.Shards(5, 2), parts.Pachinko(5, 12, coarse="family"),
    parts.NaturalPartition("writer", clients=5),
]  # fmt: skip


def balanced(classes, each, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))


def deal(request, labels, seed=0, pool=None, classes=None, **columns):
    return request.split(labels, pool, seed, classes, columns)


def rows(part):
    return [part.client(i).tolist() for i in range(part.clients)]


def printed(part):
    """SHA-256, in hex, of who holds what in which order."""
    digest = hashlib.sha256(part.sizes.astype("<i8").tobytes())
    digest.update(part.flat.astype("<i8").tobytes())
    for name in sorted(part.side):
        values = part.side[name]
        digest.update(f"{name}:{values.dtype.str}".encode() + values.tobytes())
    return digest.hexdigest()
