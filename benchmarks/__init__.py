"""Speed and memory of a round, compared with a plain PyTorch loop and with the bare arithmetic.

Like the companion, benchmarks pin torch to AVX2, unless ``FEDLIB_PIN=0``.
"""

from fedlib.processor import pin

pin()
