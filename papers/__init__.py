"""The five papers: settings, experiments, analyses and claims of each."""
