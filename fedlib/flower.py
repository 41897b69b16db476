"""The former address of an example, which copies of the library do not hold; gone in 0.4."""

raise ImportError(
    "fedlib.flower is an example now: examples/flower/ in the sources of fedlib has the app, "
    "fedlib_flower.py, and a README.md that says how to run it"
)
