"""How results are drawn, judged and run; the companion knows no paper by name.

Importing any of its modules pins torch to AVX2 in this process and in those that it starts, so that
stored results are reproduced bit by bit (``fedlib.processor``).
"""

from fedlib.processor import pin

pin()
