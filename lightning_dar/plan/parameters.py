"""Parameters, counted on the model itself, built without memory."""

from dataclasses import dataclass, replace

from lightning_dar.checkpoint.load import build_on_meta
from lightning_dar.model import TransformerConfig
from lightning_dar.residual import ResidualConfig

NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Numbers of parameters."""

    total: int
    routing: int
    """What the residual strategy owns."""

    linear: int
    """Weight matrices of the sublayers: what Muon trains."""

    orthogonalising: int
    """FLOPs of Muon's iteration over all of them."""

    root: int
    """Embedding, head, last norm and routing: what no sublayer owns, and FSDP2 keeps gathered through a step."""

    largest_sublayer: int


def count_parameters(config: TransformerConfig, residual: ResidualConfig) -> Parameters:
    """Exact, shared ones once. Raises UsageError for sizes, a strategy or options that cannot work."""
    model = build_on_meta(config, replace(residual, depth_read="naive"))  # the others may need what is not here
    sublayers = [sum(parameter.numel() for parameter in sublayer.parameters()) for sublayer in model.sublayers]
    matrices = [parameter for parameter in model.sublayers.parameters() if parameter.ndim == 2]
    total = sum(parameter.numel() for parameter in model.parameters())
    return Parameters(
        total=total,
        routing=sum(parameter.numel() for parameter in model.residual.parameters()),
        linear=sum(matrix.numel() for matrix in matrices),
        orthogonalising=sum(newton_schulz_flops(*matrix.shape) for matrix in matrices),
        root=total - sum(sublayers),
        largest_sublayer=max(sublayers),
    )


def newton_schulz_flops(rows: int, columns: int) -> int:
    """Of the five iterations that orthogonalise a matrix [m, n], m <= n: X X^T, its square, and their sum times X."""
    short, long = sorted((rows, columns))
    return NEWTON_SCHULZ_STEPS * 2 * short * short * (2 * long + short)
