"""Adaptive expert models: clusters found with exploration, and a mixture over all of them (003)."""
