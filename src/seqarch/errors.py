"""The root of the project's errors.

Each stage defines its own subclass beside the code that raises it. A message says what was given, what was
expected and what to do about it; the command line prints it without a traceback and exits with `exit_code`.
"""


class SeqarchError(Exception):
    """An error that a user can act on."""

    exit_code = 1


class ConfigError(SeqarchError):
    """The configuration is wrong: an unknown key, a bad value, names that do not fit together."""

    exit_code = 2
