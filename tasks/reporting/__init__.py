"""Runs beside the paper's tables and figures."""
