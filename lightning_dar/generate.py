"""generate: continue a prompt with a checkpoint's model."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from jsonargparse import Namespace

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import load_weights, open_checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.run.parser import (
    PlainParser,
    add_device,
    add_plugins,
    add_weights,
    find_device,
    say_weights,
    use_plugins,
)
from lightning_dar.text.bad_text import NotText, text_of
from lightning_dar.text.tokenizer import Tokenizer


def make_parser() -> PlainParser:
    parser = PlainParser(description="Continue a prompt; prints each piece of text as soon as it is known.")
    parser.add_argument(
        "--ckpt_path", type=str, required=True, help="Any checkpoint: .ckpt file, sharded, converted or foreign folder."
    )
    parser.add_argument("--prompt", type=str, default=None, help="Text to continue; default: what stdin holds.")
    parser.add_argument("--prompt_file", type=str, default=None, help="File with the text to continue.")
    parser.add_argument("--max_new_tokens", type=int, default=128, help="Tokens to add, at most.")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the most likely token.")
    parser.add_argument("--top_k", type=int | None, default=None, help="Sample among the k most likely tokens only.")
    parser.add_argument(
        "--top_p", type=float | None, default=None, help="Sample among the tokens that together reach this probability."
    )
    parser.add_argument("--seed", type=int, default=0, help="The same seed gives the same text.")
    add_weights(parser)
    add_device(parser)
    parser.add_argument(
        "--ignore_end", action="store_true", help="Go on to max_new_tokens when the model ends its text before."
    )
    add_plugins(parser)
    return parser


def run(args: list[str]) -> None:
    """Runs the command. Raises UsageError or DataError for bad input."""
    import torch

    from lightning_dar.model.generate import generate_tokens

    options = make_parser().parse_args(args)
    _check(options)
    use_plugins(options.plugins)
    checkpoint = open_checkpoint(options.ckpt_path, options.weights)
    say_weights(checkpoint)
    tokenizer = tokenizer_of(checkpoint)
    prompt = tokenizer.encode_prompt(_prompt(options.prompt, options.prompt_file))
    if not prompt:
        raise UsageError("--prompt: empty; give at least one token of text")
    model = checkpoint.build()
    load_weights(model, checkpoint)
    device = find_device(options.device)
    tokens = generate_tokens(
        model.eval().to(device),
        torch.tensor([prompt], device=device),
        options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        generator=torch.Generator().manual_seed(options.seed),
    )
    own_end = {tokenizer.end_id} if tokenizer.has_end else set()
    ends = set() if options.ignore_end else own_end | set(checkpoint.end_ids)
    for text in _text(tokenizer, (token.item() for token in tokens), ends, before=prompt[-1]):
        print(text, end="", flush=True)
    print()


def _check(options: Namespace) -> None:
    for name, least in (("max_new_tokens", 1), ("temperature", 0), ("top_k", 1)):
        value = getattr(options, name)
        if value is not None and not least <= value < float("inf"):
            raise UsageError(f"--{name} {value}: must be finite and at least {least}")
    if options.top_p is not None and not 0 < options.top_p <= 1:
        raise UsageError(f"--top_p {options.top_p}: must be above 0 and at most 1")
    if options.prompt is not None and options.prompt_file is not None:
        raise UsageError("--prompt and --prompt_file: give one of them")


def _prompt(prompt: str | None, file: str | None) -> str:
    source = "--prompt" if prompt is not None else "stdin" if file is None else f"--prompt_file {file}"
    try:
        if prompt is None:
            prompt = getattr(sys.stdin, "buffer", sys.stdin).read() if file is None else Path(file).read_bytes()
        return text_of(prompt, may_be_blank=True)
    except OSError as error:
        raise UsageError(f"{source}: cannot be read ({error})") from error
    except NotText as error:
        raise UsageError(f"{source}: {error}, in its line {error.line}") from error


def _text(tokenizer: Tokenizer, ids: Iterable[int], ends: set[int], before: int) -> Iterator[str]:
    """Text as it grows after the token `before`: some tokenizers decode a first token without its space. A character
    of several tokens appears when its last one is there."""
    pending = [before]
    shown = tokenizer.decode(pending)
    for token in ids:
        if token in ends:
            break
        pending.append(token)
        text = tokenizer.decode(pending)
        if text.endswith("\ufffd"):
            continue
        yield text[len(shown) :]
        shown = text
        if text.endswith("\n"):  # a safe place to forget the past: decoding stays linear
            pending = [token]
            shown = tokenizer.decode(pending)
    yield tokenizer.decode(pending)[len(shown) :]
