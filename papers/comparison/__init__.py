"""Every method of the five papers on one federation: the table that no paper has."""
