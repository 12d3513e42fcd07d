"""The files of a made-up chat model: a tokenizer of bytes with special tokens, and what lies beside it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<s>", "</s>", "<|endoftext|>", "<end_of_turn>")
IDS = {token: 256 + number for number, token in enumerate(SPECIAL)}
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}<end_of_turn>\r\n{% endfor %}"
TOOLS = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"


def byte_tokenizer(special: tuple[str, ...] = SPECIAL, template: str | None = None) -> Tokenizer:
    """Every byte a token, then the special ones; the template is what the post-processor makes of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    if template is not None:
        ids = [(token, tokenizer.token_to_id(token)) for token in special]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    return tokenizer


def lay(folder: Path, files: dict[str, Any], **tokenizer: Any) -> Path:
    """Writes tokenizer.json, and the files: bytes, text, or what becomes JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(**tokenizer).save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        content = content if isinstance(content, bytes | str) else json.dumps(content)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def chat_files() -> dict[str, Any]:
    """What a chat model brings: three ends of text, templates, and the files of other tokenizer classes."""
    return {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "<end_of_turn>", "special": True},
            "pad_token": "</s>",
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {
            "bos_token_id": IDS["<s>"],
            "eos_token_id": [IDS["<end_of_turn>"], IDS["<|endoftext|>"], IDS["</s>"]],
            "temperature": 0.7,
            "do_sample": True,
        },
        "special_tokens_map.json": {"bos_token": "<s>", "eos_token": "<end_of_turn>", "pad_token": "</s>"},
        "added_tokens.json": dict(IDS),
        "vocab.json": {"a": 0},
        "merges.txt": "#version: 0.2\n",
        "tokenizer.model": bytes(range(256)) + b"\r\n\x00",
        "chat_template.jinja": TEMPLATE,
        "additional_chat_templates/tools.jinja": TOOLS,
        "chat_template.json": {"chat_template": TEMPLATE},
        "processor_config.json": {"processor_class": "SomeProcessor"},
        "preprocessor_config.json": {},
        "spiece.model": b"",
    }
