"""What a command says, in one sentence and without a traceback, when it can't go on."""


class InputError(Exception):
  """A flag, a value or a file that the user can mend; the text says how."""
