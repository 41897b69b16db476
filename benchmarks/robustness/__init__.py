"""What fedlib withstands, measured: kills, disks that cannot be written, rivals, hostile input.

One file per kind of trouble, each with ``measure(plan)``, which returns rows of the report, and a
docstring whose second paragraph stands above them.
"""
