"""Masks by past releases, at no cost in epsilon."""
