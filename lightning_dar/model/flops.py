"""Floating-point operations per token, forward and backward.

    6 N                     N = weights of all matrix products, the head included: 2 forward, 4 backward
    6 L H head_dim T        causal attention: scores and sums, 4 H head_dim T / 2 forward, twice that backward
    18 D sum_s n_s          depth reads: 9 products of 2 D over all n_s sources of all reads s (docs/depth_read.md)

The first two are the *model FLOPs*, the same for every residual, by which utilisation is reckoned. The reads come on
top, as does what activation checkpointing computes again.
"""

from lightning_dar.model.build import sublayer_classes
from lightning_dar.model.config import TransformerConfig

READ_PRODUCTS = 9


def product_weights(config: TransformerConfig) -> int:
    """N: weights of the matrix products that every token passes."""
    assert config.vocab_size is not None
    sublayers = sum(sublayer.product_weights(config) for sublayer in sublayer_classes(config))
    return sublayers + config.hidden_size * config.vocab_size


def attention_flops(config: TransformerConfig, seq_len: int) -> float:
    """Forward and backward a token, on average over a window of `seq_len`; with causal masking."""
    return 6.0 * config.num_layers * config.num_heads * config.head_dim * seq_len


def model_flops(config: TransformerConfig, seq_len: int) -> float:
    """6 N and attention, a token."""
    return 6.0 * product_weights(config) + attention_flops(config, seq_len)


def sublayer_forward_flops(config: TransformerConfig, seq_len: int) -> float:
    """The forward of all sublayers, a token: what activation checkpointing does again."""
    head = config.hidden_size * config.vocab_size
    return 2.0 * (product_weights(config) - head) + attention_flops(config, seq_len) / 3


def read_flops(hidden_size: int, sources_read: int) -> float:
    """FLOPs per token of depth reads that see `sources_read` sources in all."""
    return 2.0 * READ_PRODUCTS * hidden_size * sources_read
