"""Every method of the five papers on one federation: the table that no paper has."""

# The recipes hand on this folder's section, and are asked for methods' names: they come first.
import papers.recipes  # noqa: F401
