"""The errors that `cli.py` prints as one line, without a stack trace."""


class UsageError(ValueError):
    """An option, or a combination of options, that cannot work. `cli.py` exits with status 2."""


class DataError(ValueError):
    """Data or a checkpoint that cannot be used as it lies on disk. `cli.py` exits with status 1."""


class TrainingError(RuntimeError):
    """A run that cannot go on, though what it was given was right. `cli.py` exits with status 1."""
