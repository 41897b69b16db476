"""Whether a result has the same bits, and where it has not, how far apart two results are."""
