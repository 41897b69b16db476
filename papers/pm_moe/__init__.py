"""004: fourteen federated methods, and one mixture over the private parts of nine of them.

How its methods are called. What a second stage adds stands in a column of its own, ``stage``, ""
for a method alone: `called` joins both for whoever reads.
"""

import pandas as pd

TRADITIONAL = ("FedAvg", "FedProx", "SCAFFOLD", "MOON", "FedGen")
# Heads are private, then bases, then a vector.
NINE = ("FedPer", "FedRep", "FedBABU", "FedRoD", "FedCP", "GPFL", "LG-FedAvg", "FedGH", "DBE")
UNTUNED, SYNCHRONOUS = "FedBABU, not tuned", "Fed-Syn-MoE"
STAGE, WITH_MOE, DENOISED = "stage", "+ PM-MoE", "+ PM-MoE, denoised"
SERVERS_BASE = "+ PM-MoE, server's base"  # of FedBABU
MIXED = tuple(f"{method} {WITH_MOE}" for method in NINE)


def family(method: str) -> str:
    """Return whether a method shares all of its model: orders are judged within families."""
    return "non-personalised" if method in TRADITIONAL else "personalised"


def called(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose methods have the names that people read, "FedPer + PM-MoE".

    That is method and stage in one column; a table without stages is returned as it is.
    """
    if STAGE not in table:
        return table
    names = (table["method"] + " " + table[STAGE]).str.strip()
    return table.assign(method=names).drop(columns=STAGE)
