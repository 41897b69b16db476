"""Speed and memory of a round, against a plain PyTorch loop and against the bare arithmetic.

As the companion does, benchmarks hold torch to AVX2, unless ``FEDLIB_PIN=0`` frees it.
"""

from fedlib.processor import pin

pin()
