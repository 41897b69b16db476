"""What noise buys: epsilon of clients, by Google's accountant (``fedlib[privacy]``)."""

from fedlib.algorithms import Private
from fedlib.engine.selection import cohort_size


def epsilon(
    algorithm: Private, *, clients: int, cohort: int | float, rounds: int, delta: float = 1e-3
) -> float:
    """Return epsilon of (epsilon, delta)-differential privacy of a client in a federation.

    Two federations are neighbours if one client's examples are others. Its clipped part then moves
    the sum by 2 C at most, so that noise z C is worth z / 2. With noise at the server whoever
    sees all models is held off, and a cohort drawn without replacement helps; with noise at
    the client the server is, who knows the cohort: then a client counts that is in every round.
    Only what carries noise is counted: what ``of`` asks for besides (``shares_asked``) is known,
    to the server, of every client: for FedMix's ``marginal_entropy`` its exact label counts.

    Args:
        algorithm: whose ``noise`` z is counted.
        clients: the population M.
        cohort: how many of them take part in a round, or which fraction as a float.
        rounds: how many rounds are played.
        delta: below 1 / M by custom.

    Returns:
        epsilon; infinity without noise.

    Raises:
        ImportError: without the package ``dp-accounting``.
        ValueError: for a cohort that does not fit the clients.

    Source: Wang, Balle and Kasiviswanathan, Subsampled Renyi differential privacy and analytical
    moments accountant, AISTATS 2019, theorem 27; Mironov, Renyi differential privacy, CSF 2017.
    """
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise ImportError("epsilon is counted by dp-accounting: install fedlib[privacy]") from error
    size = cohort_size(cohort, clients)
    if not algorithm.noise:
        return float("inf")
    event = dp_accounting.GaussianDpEvent(algorithm.noise / 2)
    if algorithm.at == "server" and size < clients:
        event = dp_accounting.SampledWithoutReplacementDpEvent(clients, size, event)
    neighbours = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=neighbours)
    return float(accountant.compose(event, rounds).get_epsilon(delta))
