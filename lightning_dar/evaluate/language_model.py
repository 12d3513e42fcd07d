"""A `Transformer` as lm-evaluation-harness sees a language model."""

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from lightning_dar.model import Transformer
from lightning_dar.model.generate import generate_tokens
from lightning_dar.text.tokenizer import Tokenizer

DEFAULT_MAX_NEW_TOKENS = 256  # the harness's own


class TransformerLM(TemplateLM):
    """Log-likelihoods and greedy or sampled continuations of texts.

    Args:
        model: in evaluation mode, on its device.
        tokenizer: its own.
        max_length: tokens that the model sees at most; longer texts lose their beginning.
        batch_size: texts in a forward.
        end_ids: ids that end a generated text.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, max_length: int, batch_size: int, end_ids: Sequence[int] = ()
    ):
        super().__init__()
        self.model, self.tokens = model, tokenizer
        self.max_length, self.batch_size = max_length, batch_size
        self.end_ids = {tokenizer.end_id, *end_ids}

    @property
    def eot_token_id(self) -> int:
        return self.tokens.end_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without context comes after."""
        return self.tokens.begin_ids[0] if self.tokens.begin_ids else self.tokens.end_id

    @property
    def tokenizer_name(self) -> str:
        return self.tokens.hash

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        ids = self.tokens.encode(string)
        return ids if add_special_tokens is False else self.tokens.document(ids, ends=False)

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of `max_length` that each token is predicted in once."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            ):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += value
        return totals

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: list, disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, whether it is the greedy one) of each continuation; the longest texts first."""
        order = sorted(range(len(requests)), key=lambda number: -len(requests[number][1]) - len(requests[number][2]))
        scores: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        device = self.model.embed.weight.device
        with tqdm(total=len(requests), desc="Scoring", disable=disable_tqdm) as bar:
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                texts = [(requests[n][1] + requests[n][2])[-self.max_length - 1 :] for n in chosen]
                width = max(map(len, texts)) - 1
                inputs = torch.tensor([text[:-1] + [0] * (width + 1 - len(text)) for text in texts], device=device)
                logits = self.model(inputs)  # what pads a text lies behind it, where no earlier token looks
                for number, text, row in zip(chosen, texts, logits, strict=True):
                    length = len(requests[number][2])
                    scores[number] = _score(row[len(text) - 1 - length : len(text) - 1], text[-length:])
                bar.update(len(chosen))
        return scores

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        """Continuations that end at one of the request's stops, an end token or its `max_gen_toks`."""
        return [self._generate(*request.args) for request in tqdm(requests, desc="Generating", disable=disable_tqdm)]

    def _generate(self, prompt: str, options: dict[str, Any]) -> str:
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        most = options.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS)
        ids = self.tokens.encode_prompt(prompt)[-max(1, self.max_length - most) :]
        sampled = options.get("do_sample", False)
        stream = generate_tokens(
            self.model,
            torch.tensor([ids], device=self.model.embed.weight.device),
            most,
            temperature=options.get("temperature", 1.0) if sampled else 0.0,
        )
        new: list[int] = []
        for token in stream:
            if token.item() in self.end_ids:
                break
            new.append(token.item())
            text = self.tokens.decode(new)
            found = [text.index(stop) for stop in stops if stop in text]
            if found:
                return text[: min(found)]
        return self.tokens.decode(new)


def _score(logits: torch.Tensor, targets: list[int]) -> tuple[float, bool]:
    """Of `targets` under logits [len(targets), V]."""
    wanted = torch.tensor(targets, device=logits.device)
    logits = logits.float()
    chosen = logits.log_softmax(-1).gather(1, wanted[:, None]).sum().item()
    return chosen, bool((logits.argmax(-1) == wanted).all())
