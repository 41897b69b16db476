"""Whether results have the same bits, and how far they are apart if not."""
