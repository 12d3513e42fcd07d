"""Throughput of preparing text with a BPE tokenizer, against the tokenizers library alone with as many threads.

python -m benchmarks.prepare [MEGABYTES] [THREADS] [TOKENIZER]

The library encodes the same text from memory by its own thread pool, in batches of the same size, and its ids are
dropped. Preparing reads .jsonl.zst, splits, encodes, and writes shards. Both run in one process, in turns; a ratio
is of two neighbouring runs, so that other work on the machine slows both. The ratio of the processor time does not
depend on other work at all; it counts everything that preparing does besides.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 5
BATCH_CHARS = 2**20


def write_source(folder: Path, megabytes: float) -> list[str]:
    """The texts of Python's own library, as often as needed, one a line of a .jsonl.zst."""
    import pyarrow

    from lightning_dar.text.pieces import read_pieces
    from lightning_dar.text.sources import find_files

    library = [piece.text for file in find_files(["stdlib"]) for piece in read_pieces(file, "text")]
    texts, size = [], 0
    while size < megabytes * 1e6:
        texts.append(library[len(texts) % len(library)])
        size += len(texts[-1].encode())
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "text.jsonl.zst").write_bytes(pyarrow.Codec("zstd").compress(lines.encode(), asbytes=True))
    return texts


def batches(texts: list[str]) -> Iterator[list[str]]:
    batch, chars = [], 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def main(megabytes: float = 16, threads: int = 2, tokenizer: str = "bpe:8192") -> None:
    os.environ |= {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    import tokenizers

    from lightning_dar.text.manifest import Request
    from lightning_dar.text.prepare import prepare
    from lightning_dar.text.tokenizer import bpe_size, load_tokenizer, train_bpe

    with tempfile.TemporaryDirectory() as work:
        texts = write_source(Path(work), megabytes)
        size = bpe_size(tokenizer)
        made = load_tokenizer(tokenizer) if size is None else train_bpe(size, texts)
        path = Path(work, "tokenizer.json")
        path.write_text(made.to_json())
        request = Request(source=(f"{work}/text.jsonl.zst",), text_field="text", tokenizer=str(path), val_fraction=0.01)
        library = tokenizers.Tokenizer.from_str(made.to_json())
        ratios, processor = [], []
        for number in range(ROUNDS):
            start, cpu = time.perf_counter(), time.process_time()
            for batch in batches(texts):
                library.encode_batch_fast(batch, add_special_tokens=False)
            alone, cpu_alone = time.perf_counter() - start, time.process_time() - cpu
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            start, cpu = time.perf_counter(), time.process_time()
            manifest = prepare(request, Path(work, str(number)), threads)
            prepared, cpu_prepared = time.perf_counter() - start, time.process_time() - cpu
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
            tokens = manifest["train"]["tokens"] + manifest["val"]["tokens"]
            ratios.append(alone / prepared)
            processor.append(cpu_alone / cpu_prepared)
            print(f"library {tokens / alone:,.0f} tokens/s, prepare {tokens / prepared:,.0f}: {ratios[-1]:.2f}")
    print(
        f"{threads} threads, {megabytes} MB, {tokenizer}: median ratio {statistics.median(ratios):.2f}, "
        f"of processor time {statistics.median(processor):.2f}"
    )


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((float, int, str), sys.argv[1:], strict=False)))
