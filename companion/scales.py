"""The sizes in which every section can be run: minutes, an evening, the papers' own."""

SCALES = ("quick", "standard", "paper")
