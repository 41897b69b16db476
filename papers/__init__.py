"""The five papers: settings, experiments, analyses and claims of each.

``papers.book`` is all of it as one value, which the companion is handed. Whoever imports anything
of the papers has their methods look in figures as they do everywhere.
"""

from companion import looks


def _own() -> looks.Looks:
    from papers.looks import LOOKS  # when a figure is drawn: it needs every paper

    return LOOKS


looks.hand(_own)
