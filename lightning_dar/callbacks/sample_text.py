"""What the model writes so far."""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_dar.callbacks.measuring import logged_step
from lightning_dar.errors import UsageError
from lightning_dar.model.generate import generate
from lightning_dar.run.loggers import kind_of


class SampleText(Callback):
    """Continues a prompt after every validation, into the logger's texts; `RunSummary` shows the last one.

    Args:
        prompt: text to continue.
        max_new_tokens: tokens to add.
        temperature: 0 takes the most likely token.
        top_k: sample among the k most likely tokens only.
        seed: of the sampling; the same at every step, so that the samples differ by the weights alone.
    """

    def __init__(
        self,
        prompt: str = "def ",
        max_new_tokens: int = 48,
        temperature: float = 0.8,
        top_k: int = 50,
        seed: int = 0,
    ):
        if not prompt:
            raise UsageError("SampleText: prompt is empty; give some text to continue")
        self.prompt, self.max_new_tokens = prompt, max_new_tokens
        self.temperature, self.top_k, self.seed = temperature, top_k, seed
        self.text: str | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        tokenizer = getattr(pl_module, "tokenizer", None)
        loss = trainer.callback_metrics.get("val/loss")
        if trainer.sanity_checking or tokenizer is None or (loss is not None and not loss.isfinite()):
            return
        prompt = torch.tensor([tokenizer.encode_prompt(self.prompt)], dtype=torch.long, device=pl_module.device)
        with trainer.precision_plugin.forward_context():
            ids = generate(
                pl_module.model,
                prompt,
                self.max_new_tokens,
                temperature=self.temperature,
                top_k=self.top_k,
                generator=torch.Generator().manual_seed(self.seed),
            )
        self.text = tokenizer.decode(ids[0].tolist())
        for logger in trainer.loggers:
            kind_of(type(logger)).log_text(logger, "sample", self.text, logged_step(trainer.global_step))
