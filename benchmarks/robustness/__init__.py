"""What fedlib withstands, measured: kills, full and read-only disks, rivals, hostile input.

    python -m benchmarks.robustness [--only NAME ...] [--kills N] [--cases N] [--seed N] [--keep]

One file per kind of trouble, each with ``measure(plan)``, which returns rows of the report, and a
docstring whose paragraph stands above them.
"""
