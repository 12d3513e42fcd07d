"""The architecture's settings, and the presets with the sizes of the paper's runs."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from lightning_dar.errors import UsageError

AttentionBackend = Literal["sdpa", "xformers"]
InitOutputs = Literal["same", "fan-in", "depth"]
Preset = Literal["220m", "533m", "1044m", "7.6b", "qwen3-0.6b"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretching of the rotary embeddings, for contexts longer than those of the pretraining.

    Args:
        factor: low frequencies are divided by this.
        low_freq_factor: frequencies that turn fewer times than this over the original context are low.
        high_freq_factor: those that turn more often than this stay as they are; between the two, a blend.
        original_max_positions: tokens of the original context.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "original_max_positions"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"model.rope_scaling.{name}={value}: must be positive")
        if not self.low_freq_factor < self.high_freq_factor < math.inf:
            raise UsageError(
                f"model.rope_scaling.high_freq_factor={self.high_freq_factor}: must be above "
                f"low_freq_factor={self.low_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """Which kind of MLP the layers have.

    Args:
        kind: a registered kind; swiglu is the one that comes along.
        options: the kind's own options; unset ones keep their defaults.
    """

    kind: str = "swiglu"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A Qwen3/Llama-style decoder. Raises UsageError when the sizes do not fit together.

    `vocab_size` may stay open (None) until the tokenizer is known; a transformer cannot be built before.
    """

    vocab_size: int | None
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    qk_norm: bool = True
    qkv_bias: bool = False
    tie_embeddings: bool = True
    init_std: float | None = None
    init_outputs: InitOutputs | None = None
    attention_backend: AttentionBackend = "sdpa"
    mlp: MLPConfig = MLPConfig()

    def __post_init__(self) -> None:
        if isinstance(self.mlp, dict):
            object.__setattr__(self, "mlp", MLPConfig(**self.mlp))
        if isinstance(self.rope_scaling, dict):  # as checkpoints keep it
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"model.{name}={value}: must be at least 1")
        self._settle_init()
        for name in ("norm_eps", "rope_theta", "init_std"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"model.{name}={value}: must be positive")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"model.num_heads={self.num_heads} must be a multiple of model.num_kv_heads={self.num_kv_heads}"
            )
        for name, known in (("attention_backend", get_args(AttentionBackend)), ("init_outputs", get_args(InitOutputs))):
            if getattr(self, name) not in known:
                raise UsageError(f"model.{name}={getattr(self, name)}: must be {' or '.join(known)}")
        if self.head_dim % 2:
            raise UsageError(f"model.head_dim={self.head_dim}: rotary embeddings need an even number")

    def _settle_init(self) -> None:
        """Settles the scale of the initial weights: by width and depth where none is given (docs/recipe.md); one that
        is given is that of all matrices."""
        if self.init_outputs is None:
            object.__setattr__(self, "init_outputs", "depth" if self.init_std is None else "same")
        if self.init_std is None:
            object.__setattr__(self, "init_std", 1 / math.sqrt(self.hidden_size))

    def output_std(self, fan_in: int) -> float:
        """Standard deviation of the initial weights of a sublayer's output projection, which sums `fan_in` inputs."""
        if self.init_outputs == "fan-in":
            return self.init_std * math.sqrt(self.hidden_size / fan_in)
        return self.init_std / math.sqrt(2 * self.num_layers) if self.init_outputs == "depth" else self.init_std


def _paper(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, ff: int) -> dict[str, int | float]:
    return {
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ff,
        "init_std": 0.02,
    }


PRESETS: dict[str, dict[str, int | float]] = {
    "220m": _paper(768, 12, 12, 4, 64, 3072),
    "533m": _paper(1024, 24, 16, 8, 64, 4096),
    "1044m": _paper(1280, 36, 20, 4, 64, 5120),
    "7.6b": _paper(4096, 36, 32, 8, 128, 12288),
    "qwen3-0.6b": {**_paper(1024, 28, 16, 8, 128, 3072), "rope_theta": 1e6},
}


def resolve_config(
    preset: Preset | None = None,
    *,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    intermediate_size: int | None = None,
    norm_eps: float | None = None,
    rope_theta: float | None = None,
    rope_scaling: RopeScaling | None = None,
    qk_norm: bool | None = None,
    qkv_bias: bool | None = None,
    tie_embeddings: bool | None = None,
    init_std: float | None = None,
    init_outputs: InitOutputs | None = None,
    attention_backend: AttentionBackend | None = None,
    mlp: MLPConfig | None = None,
) -> TransformerConfig:
    """A preset, explicit sizes, or a preset with some sizes overridden.

    Args:
        preset: sizes of one of the paper's runs; explicit options below override it.
        vocab_size: number of token ids; default: the preset's, else that of the data's tokenizer.
        hidden_size: width D of the residual stream.
        num_layers: layers L; each has two sublayers, attention and MLP, so there are 2L sites.
        num_heads: query heads.
        num_kv_heads: key and value heads (grouped-query attention); default: num_heads.
        head_dim: width of a head; default: hidden_size / num_heads.
        intermediate_size: width of the SwiGLU MLP; default: 4 x hidden_size.
        norm_eps: epsilon of every RMSNorm; default 1e-6.
        rope_theta: base of the rotary embeddings; default 10000.
        rope_scaling: Llama 3's stretching of the rotary embeddings; default: none.
        qk_norm: RMSNorm on queries and keys; default true.
        qkv_bias: bias on the query, key and value projections; default false.
        tie_embeddings: the head shares the embedding's weight; default true.
        init_std: standard deviation of the initial weight matrices; default: a preset's 0.02, else
            1 / sqrt(hidden_size).
        init_outputs: that of the sublayers' output projections: `same`; `fan-in`, by their own number of inputs instead
            of the width; `depth`, divided by the square root of the number of sublayers. Default: `depth`, but `same`
            where init_std is given, by a preset too.
        attention_backend: `sdpa` (everywhere, default) or `xformers` (CUDA only).
        mlp: the kind of the MLP, and its options.

    Raises:
        UsageError: a size is missing, or the sizes do not fit together.
    """
    given = {name: value for name, value in locals().items() if name != "preset" and value is not None}
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"model.preset: unknown preset '{preset}'; known: {', '.join(PRESETS)}")
    sizes = {**(PRESETS[preset] if preset else {}), **given}
    sizes.setdefault("vocab_size", None)
    for name in ("hidden_size", "num_layers", "num_heads"):
        if name not in sizes:
            raise UsageError(f"model.{name} is not set: give it, or a model.preset ({', '.join(PRESETS)})")
    heads = sizes["num_heads"]
    sizes.setdefault("num_kv_heads", heads)
    sizes.setdefault("intermediate_size", 4 * sizes["hidden_size"])
    if "head_dim" not in sizes:
        if heads < 1 or sizes["hidden_size"] % heads:
            raise UsageError(
                f"model.hidden_size={sizes['hidden_size']} is not a multiple of model.num_heads={heads}: "
                "change one of them, or set model.head_dim"
            )
        sizes["head_dim"] = sizes["hidden_size"] // heads
    return TransformerConfig(**sizes)
