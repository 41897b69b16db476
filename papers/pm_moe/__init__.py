"""Paper 004: fourteen federated methods, and one mixture over the private parts of nine of them.

This module has the names of its methods. The second stage of a run stands in a column of its own,
``stage``, which is "" for a method alone; `called` joins both for readers.
"""

import pandas as pd

TRADITIONAL = ("FedAvg", "FedProx", "SCAFFOLD", "MOON", "FedGen")
# Methods with private heads come first, then those with private bases, then DBE's vector.
NINE = ("FedPer", "FedRep", "FedBABU", "FedRoD", "FedCP", "GPFL", "LG-FedAvg", "FedGH", "DBE")
UNTUNED, SYNCHRONOUS = "FedBABU, not tuned", "Fed-Syn-MoE"
STAGE, WITH_MOE, DENOISED = "stage", "+ PM-MoE", "+ PM-MoE, denoised"
SERVERS_BASE = "+ PM-MoE, server's base"  # of FedBABU
MIXED = tuple(f"{method} {WITH_MOE}" for method in NINE)


def family(method: str) -> str:
    """Return whether a method shares its whole model; orders are judged within families."""
    return "non-personalised" if method in TRADITIONAL else "personalised"


def called(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the names that readers know, such as "FedPer + PM-MoE".

    Method and stage are joined in one column; a table without stages is returned as it is.
    """
    if STAGE not in table:
        return table
    names = (table["method"] + " " + table[STAGE]).str.strip()
    return table.assign(method=names).drop(columns=STAGE)
