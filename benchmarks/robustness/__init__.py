"""The robustness of fedlib, measured: kills, full disks, concurrent processes and hostile input.

There is a module per kind of trouble with a function ``measure(plan)``, which returns rows of the
report. The second paragraph of the module's docstring is printed above them.
"""
