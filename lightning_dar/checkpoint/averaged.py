"""Checkpoints that hold two sets of weights: those that are trained, and an average of what they have been.

WeightAveraging               the averaged ones in `state_dict`, the others under a key of its own
StochasticWeightAveraging     the others in `state_dict`, the averaged ones in the callback's state
"""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from lightning_dar.errors import UsageError

WhichWeights = Literal["averaged", "current"]
CURRENT_KEY, AVERAGING_KEY = "current_model_state", "averaging_state"  # Lightning's
StateDict = dict[str, Tensor]


def choose_weights(
    content: Mapping[str, Any], wanted: WhichWeights | None, path: Any
) -> tuple[StateDict, WhichWeights | None]:
    """The weights in Lightning's single file, and which they are: averaged unless the others are wanted; None where
    there is one set alone.

    Raises:
        UsageError: averaged ones are wanted, and there are none.
    """
    current, averaged = trained_weights(content), _averaged(content)
    if averaged is None and wanted == "averaged":
        raise UsageError(f"'{path}' holds no averaged weights")
    if averaged is None:
        return current, None
    return (current, "current") if wanted == "current" else (averaged, "averaged")


def which_weights(path: Any, taken: WhichWeights, option: str) -> str:
    """A line for who reads a checkpoint of two sets; `option` is what chooses between them."""
    other = "current" if taken == "averaged" else "averaged"
    return f"'{path}' holds averaged and current weights: taken are the {taken} ones ({option}{other} for the others)"


def trained_weights(content: Mapping[str, Any]) -> StateDict:
    """Those that its optimizer goes on with."""
    return content[CURRENT_KEY if CURRENT_KEY in content else "state_dict"]


def _averaged(content: Mapping[str, Any]) -> StateDict | None:
    """None where nothing has been averaged yet: what is kept for it is then the weights at the start of the run."""
    if CURRENT_KEY in content:
        return content["state_dict"] if content.get(AVERAGING_KEY, {}).get("n_averaged", 1) > 0 else None
    for state in content.get("callbacks", {}).values():
        if isinstance(state, Mapping) and state.get("average_model_state") and state.get("n_averaged", 0) > 0:
            return state["average_model_state"]
    return None
