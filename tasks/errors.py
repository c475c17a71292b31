"""What a command says, in one sentence and without a traceback, when it can't go on."""


class InputError(Exception):
  """A flag, a value or a file that the user can mend; the text says how."""


class RunError(Exception):
  """A run that had begun can't go on; the text says why, and how it can."""
