"""Uses that the server makes of past releases, at no cost in epsilon."""
