"""Which exceptions refuse what a user asked for. They end in one line; all others are bugs, and keep their trace.

Where an exception comes from decides: from the constructor of a class that the user named, from a logger, from one of
Lightning's callbacks, from Lightning's own checks.
"""

import traceback
from collections.abc import Callable
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.spike import TrainingSpikeException
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_dar.errors import DataError, TrainingError, UsageError

OURS = ("lightning_dar.", "callbacks.")
BUGS = (AssertionError, AttributeError, NameError, TypeError, LookupError, ArithmeticError, NotImplementedError)
REFUSALS = (ValueError, ImportError, OSError, MisconfigurationException)


class Constructors:
    """Makes the classes that a config names, and keeps what one of them raised: jsonargparse goes on to try the other
    types that the option may have, and then reports them all."""

    def __init__(self, trainer: Namespace | None) -> None:
        """
        Args:
            trainer: the settings of the trainer, to name the option.
        """
        self.trainer = trainer
        self.refusal: UsageError | DataError | None = None

    def __call__(self, cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return cls(*args, **kwargs)
        except (UsageError, DataError) as error:
            self.refusal = error
            raise
        except Exception as error:
            if not cls.__module__.startswith(OURS):
                self.refusal = UsageError(f"{self._option(cls.__name__)}{cls.__name__}: {_words(error)}")
                self.refusal.__cause__ = error  # what the class itself has raised
            raise

    def _option(self, name: str) -> str:
        settings = self.trainer.as_dict() if self.trainer is not None else {}
        return next((f"trainer.{key}: " for key, value in settings.items() if f".{name}'" in repr(value)), "")


def refusal_of(error: Exception) -> Exception | None:
    """The error to report in place of one that Lightning's command line has raised; None for a bug."""
    if isinstance(error, UsageError | DataError | TrainingError):
        return error
    if isinstance(error, MisconfigurationException):
        return UsageError(_words(error))
    if (died := _death_of_a_worker(error)) is not None:
        return TrainingError(
            f"a process that loads data has died ({died}); often memory has run out: lower data.num_workers or "
            "data.batch_size, and go on with --ckpt_path last"
        )
    if isinstance(error, BUGS):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in frames:
        if isinstance(logger := frame.f_locals.get("self"), Logger):
            return TrainingError(f"trainer.logger: {type(logger).__name__}: {_words(error)}")
    module = frames[-1].f_globals.get("__name__", "")
    if isinstance(error, TrainingSpikeException):
        return TrainingError(f"SpikeDetection: {_words(error)}; its exclude_batches_path lists it")
    if module.startswith("lightning.pytorch.callbacks."):
        return UsageError(f"trainer.callbacks: {type(frames[-1].f_locals.get('self')).__name__}: {_words(error)}")
    if isinstance(error, REFUSALS) and module.startswith("lightning."):
        return UsageError(_words(error))
    return None


def refusal_of_trainer(error: Exception) -> UsageError:
    """What Lightning's trainer says when it is made: its arguments are the user's own."""
    return UsageError(f"trainer: {_words(error)}")


def _words(error: Exception) -> str:
    plain = str(error) and not isinstance(error, LookupError | AssertionError)
    return str(error) if plain else f"{type(error).__name__}: {error}".removesuffix(": ")


def _death_of_a_worker(error: BaseException | None) -> str | None:
    """torch raises it wherever the program is, a shutdown that another death has begun included: so the cause may lie
    further back. It has no class of its own."""
    while error is not None and not str(error).startswith("DataLoader worker"):
        error = error.__cause__ or error.__context__
    return None if error is None else str(error)
