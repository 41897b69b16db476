"""The five papers: settings, experiments, analyses and claims of each.

``papers.registry`` combines them in one value for the companion. Importing any module of this
package sets the theme of its figures.
"""

from companion import theme


def _own() -> theme.Theme:
    from papers.theme import THEME  # when a figure is drawn

    return THEME


theme.use(_own)
