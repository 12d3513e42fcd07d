"""The transformer: one loop over sublayers, wired by a residual strategy."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_dar.errors import UsageError
from lightning_dar.model.attention import Attention, document_mask, require_backend
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.layer import Context, KVCache, Layer, Sublayer, layer_sites, reset_module
from lightning_dar.model.mlp import mlp_class
from lightning_dar.model.rope import rope_angles
from lightning_dar.residual.base import Residual


class Transformer(nn.Module):
    """Token ids [B, T] -> logits [B, T, V]. Which sublayer reads what is the residual strategy's matter.

    Weights are not initialised yet: `build_transformer` does it.
    """

    attention: ClassVar[type[Attention]] = Attention
    mlp: ClassVar[type[Sublayer] | None] = None  # by the config's kind

    def __init__(self, config: TransformerConfig, residual: Residual):
        super().__init__()
        if config.vocab_size is None:
            raise UsageError("model.vocab_size is not set: give it, or data with a known tokenizer")
        require_backend(config.attention_backend)
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        sublayers: list[nn.Module] = []
        wired = {"pre_norm": residual.pre_norm}
        mlp = self.mlp or mlp_class(config.mlp.kind)
        for layer in range(config.num_layers):
            sublayers.append(self.attention(config, layer=layer, num_inputs=residual.attention_inputs, **wired))
            sublayers.append(mlp(config, **wired, **config.mlp.options))
        self.sublayers = nn.ModuleList(sublayers)
        self.layers = nn.ModuleList(Layer(self.sublayers, sites) for sites in layer_sites(config.num_layers))
        self.residual = residual
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        document_ids: Tensor | None = None,
        *,
        head: Callable[[Tensor, Tensor], Tensor] = F.linear,
        residual: Residual | None = None,
        cache: KVCache | None = None,
        with_auxiliary: bool = False,
    ) -> Any:
        """Logits [B, T, V], or whatever `head` makes of the hidden states.

        Args:
            input_ids: int [B, T].
            document_ids: int [B, T]; where given, tokens attend within their own document only. With a cache, of
                all tokens seen, [B, cache.length + T].
            head: (hidden states [B, T, D], head weight [V, D]) -> result. It runs inside the forward, where a
                sharded weight is whole; a loss passed here never needs all logits at once.
            residual: wires the same sublayers by another strategy, for this call: a probe around the model's
                own, or `standard` to compare with.
            cache: the tokens before `input_ids`; these are added to it.
            with_auxiliary: return a pair: the result, and by site the auxiliary losses of the sublayers that have one.
        """
        residual = self.residual if residual is None else residual
        context = self._context(input_ids, document_ids, cache)
        state = residual.start(self.embed(input_ids))
        for layer in self.layers:
            state = layer(state, residual, context)
        hidden = self.norm(residual.finish(state))
        result = head(hidden, self.embed.weight if self.head is None else self.head.weight)
        return (result, context.auxiliary) if with_auxiliary else result

    def _context(self, input_ids: Tensor, document_ids: Tensor | None, cache: KVCache | None) -> Context:
        config, seq_len, seen = self.config, input_ids.shape[1], 0 if cache is None else cache.length
        positions = torch.arange(seen, seen + seq_len, device=input_ids.device)
        cos, sin = rope_angles(positions, config.head_dim, config.rope_theta, scaling=config.rope_scaling)
        mask = document_mask(document_ids, "sdpa" if seen else config.attention_backend)
        return Context(cos, sin, mask[..., -seq_len:, :] if seen and mask is not None else mask, cache, {})

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """All that has parameters, by name, in the order in which it is initialised."""
        yield "embed", self.embed
        for site, sublayer in enumerate(self.sublayers):
            yield f"sublayers.{site}", sublayer
        yield "norm", self.norm
        if self.head is not None:
            yield "head", self.head
        yield "residual", self.residual

    def init_weights(self) -> None:
        for _, part in self.parts():
            self.init_part(part)

    def init_part(self, part: nn.Module) -> None:
        """Sublayers and the residual strategy initialise themselves; the rest is at the config's scale."""
        if isinstance(part, Sublayer) or part is self.residual:
            part.reset_parameters()
        else:
            reset_module(part, self.config.init_std)

    def init_module(self, name: str, module: nn.Module) -> None:
        """One module of a sublayer, by its name in the transformer, or an embedding, norm or head; none of its
        submodules."""
        sublayer, own_name = self._in_sublayer(name)
        if sublayer is not None:
            sublayer.reset_module(own_name, module)
        else:
            reset_module(module, self.config.init_std)

    def decays(self, name: str) -> bool:
        """Whether the parameter of this name is a weight matrix of a sublayer, as the sublayer says."""
        sublayer, own_name = self._in_sublayer(name)
        return sublayer is not None and sublayer.decays(own_name)

    def _in_sublayer(self, name: str) -> tuple[Sublayer | None, str]:
        """The sublayer that a module or parameter of this name lies in, and its name there."""
        first, *place = name.split(".", 2)
        return (self.sublayers[int(place[0])], "".join(place[1:])) if first == "sublayers" and place else (None, name)
