"""The five papers: settings, experiments, analyses and claims of each.

``papers.registry`` is all of it as one value, which the companion is handed. Whoever imports
anything of the papers has their methods look in figures as they do everywhere.
"""

from companion import theme


def _own() -> theme.Theme:
    from papers.theme import THEME  # when a figure is drawn

    return THEME


theme.use(_own)
