"""From a command line to `RunSettings`."""
