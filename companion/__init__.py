"""How results are drawn, judged and run; knows no paper by name.

Whoever imports anything of it computes with torch held to AVX2, and so do the processes that it
starts: stored results are repeated bit by bit (``fedlib.processor``).
"""

from fedlib.processor import pin

pin()
