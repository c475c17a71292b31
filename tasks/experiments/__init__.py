"""Grids and flag files, the tables of the paper, and the search for runs."""
