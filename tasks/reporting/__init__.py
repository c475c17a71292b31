"""Compares runs with the paper's tables and figures."""
