"""Runs many rounds, and resumes them after a crash."""
