"""Differential privacy of clients, by Google's accountant (``fedlib[privacy]``)."""

from fedlib.algorithms import Private
from fedlib.engine.selection import cohort_size


def epsilon(
    algorithm: Private, *, clients: int, cohort: int | float, rounds: int, delta: float = 1e-3
) -> float:
    """Return epsilon of the (epsilon, delta)-differential privacy of a client.

    Two federations are neighbours if they differ in the examples of one client. Replacing these
    moves the sum of clipped updates by at most 2 C, so that noise with standard deviation z C has
    the multiplier z / 2. Noise at the server protects against whoever sees all models, and is
    amplified by drawing the cohort without replacement. Noise at the client also protects against
    the server, which knows the cohort; then the client is counted in every round.

    Only noisy messages are counted. The distributions that ``algorithm.of`` requests
    (``shares_asked``) are known to the server, such as exact label counts for FedMix's
    ``marginal_entropy``.

    Args:
        algorithm: the private algorithm, with its noise multiplier z.
        clients: the number M of clients.
        cohort: the number of clients per round, or a fraction as a float.
        rounds: the number of rounds.
        delta: usually below 1 / M. Default: 0.001.

    Returns:
        epsilon; infinity without noise.

    Raises:
        ImportError: without the package ``dp-accounting``.
        ValueError: if the cohort does not fit the number of clients.

    Reference: Wang, Balle and Kasiviswanathan, Subsampled Renyi differential privacy and analytical
    moments accountant, AISTATS 2019, theorem 27; Mironov, Renyi differential privacy, CSF 2017.
    """
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise ImportError("epsilon needs dp-accounting: install fedlib[privacy]") from error
    size = cohort_size(cohort, clients)
    if not algorithm.noise:
        return float("inf")
    event = dp_accounting.GaussianDpEvent(algorithm.noise / 2)
    if algorithm.at == "server" and size < clients:
        event = dp_accounting.SampledWithoutReplacementDpEvent(clients, size, event)
    neighbours = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=neighbours)
    return float(accountant.compose(event, rounds).get_epsilon(delta))
