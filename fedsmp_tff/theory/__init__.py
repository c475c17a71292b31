"""The paper's theorems as functions."""
