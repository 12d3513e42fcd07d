"""Which document each prediction belongs to: the units that the bootstrap draws."""

import torch
from torch import Tensor

from lightning_dar.diagnostics.bootstrap import MIN_UNITS


def target_documents(windows: Tensor, end_id: int, ends_before: Tensor) -> Tensor:
    """The document of each target, numbered 0, 1, ... in the order of the text.

    An end token belongs to the document that it ends, and a document may go on over several windows.

    Args:
        windows: int64 [N, T + 1], ids.
        end_id: the token that ends a document.
        ends_before: int64 [N], end tokens in the text before each window, windows left out included.

    Returns:
        int64 [N, T].
    """
    ends = (windows == end_id).long()
    documents = ends.cumsum(1) - ends + ends_before[:, None]
    return torch.unique(documents[:, 1:], return_inverse=True)[1]


def consecutive_ends(windows: Tensor, end_id: int) -> Tensor:
    """`ends_before` of windows that follow each other: int64 [N]."""
    ends = (windows == end_id).sum(1)
    return ends.cumsum(0) - ends


def units(documents: Tensor) -> tuple[Tensor, str]:
    """What the bootstrap draws, int64 [N, T], and its name: documents; windows where those are more and documents are
    too few for an interval."""
    count = int(documents.max()) + 1
    if count >= min(MIN_UNITS, len(documents)):
        return documents, "document"
    return torch.arange(len(documents))[:, None].expand_as(documents), "window"
