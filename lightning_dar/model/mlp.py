"""The SwiGLU sublayer."""

from torch import Tensor, nn
from torch.nn import functional as F

from lightning_dar.model.attention import Context
from lightning_dar.model.config import TransformerConfig


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)) of the normed input."""

    def __init__(self, config: TransformerConfig, *, pre_norm: bool = True):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.norm = nn.RMSNorm(hidden, config.norm_eps) if pre_norm else nn.Identity()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = self.norm(x)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
