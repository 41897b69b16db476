"""Specialists and generalists: one gate between a local and a global expert (001 and 002)."""
