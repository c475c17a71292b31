"""Experiments: the paper's tasks and settings, and the commands that run them."""
