"""Speed and memory of a round, against a plain PyTorch loop and against the bare arithmetic."""
