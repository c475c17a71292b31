"""Uses that the server makes of past releases, at no cost in epsilon."""

# Defaults that the help of commands names; here, as the modules import TensorFlow.
FILTER_DECAY = 0.9
EXPLORE = 0.1
