"""Finds settings that no run could have before the first cell starts."""

from collections.abc import Sequence

from lightning.pytorch.cli import LightningArgumentParser

from lightning_dar.errors import UsageError
from lightning_dar.fit.lightning_cli import RoutedTrainer
from lightning_dar.run.parser import OneLine, add_plugins, use_plugins
from lightning_dar.study.identity import plugins_of
from lightning_dar.study.matrix import Cell
from lightning_dar.text import TextData
from lightning_dar.training import LanguageModel


class _RaisingParser(OneLine, LightningArgumentParser):
    """Raises what is wrong instead of ending the process."""

    def exit(self, status: int = 0, message: str | None = None) -> None:
        raise UsageError((message or "").removeprefix("error: ").removesuffix(" (--help lists the options)\n"))


def check_settings(cells: Sequence[Cell]) -> None:
    """Parses the settings of every variant, and builds its network without weights.

    Raises:
        UsageError: settings that `fit` would refuse; names the variant.
        DataError: a checkpoint to start from that cannot be opened.
    """
    parser = _settings_parser()
    for cell in {cell.variant: cell for cell in cells}.values():
        try:
            use_plugins(plugins_of(cell.settings))
            settings = parser.parse_object(cell.settings)
            LanguageModel(**settings.model.as_dict())
        except UsageError as error:
            raise UsageError(f"variants.{cell.variant}: {error}") from error


def _settings_parser() -> LightningArgumentParser:
    parser = _RaisingParser()
    parser.add_argument("--seed_everything", type=int)
    parser.add_lightning_class_args(RoutedTrainer, "trainer")
    parser.add_lightning_class_args(LanguageModel, "model")
    parser.add_lightning_class_args(TextData, "data")
    add_plugins(parser)
    return parser
