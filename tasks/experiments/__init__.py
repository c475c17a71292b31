"""Experiments: grids, the tables of the paper, and the search for runs; flag files and grids lie here."""
