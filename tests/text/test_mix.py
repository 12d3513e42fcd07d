import shutil
from collections import Counter

import pytest
import torch
from recording import fit, same_windows

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text import TextData
from lightning_dar.text.loading import MixedTrainSampler, MixedValidationSampler, apportion
from lightning_dar.text.manifest import Request
from lightning_dar.text.prepare import prepare

pytestmark = [
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]
LENGTHS = {"big": 400, "mid": 50, "small": 7}
SHARES = {"big": 0.5, "mid": 0.3, "small": 0.2}
TOTAL = 457


def set_of(window: int) -> str:
    return "big" if window < 400 else "mid" if window < 450 else "small"


def draws(passes: int, **options) -> list[int]:
    """All windows of some passes of one rank with batches of one: nothing is left out."""
    samplers = [
        MixedTrainSampler(LENGTHS, SHARES, 1, consumed=lambda number=number: number * TOTAL, **options)
        for number in range(passes)
    ]
    return [window for sampler in samplers for window in sampler]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("lightning_dar.text.loading.BLOCK", 100)
    monkeypatch.setattr("lightning_dar.text.loading.POOL", 30)


@pytest.mark.usefixtures("small_blocks")
class TestTrainOrder:
    def test_every_stretch_holds_the_sets_by_their_weights(self):
        order = [set_of(window) for window in draws(4)]
        for start in range(0, len(order) - 100, 100):
            assert Counter(order[start : start + 100]) == {"big": 50, "mid": 30, "small": 20}
        for end in (10, 33, 57, 1234):  # not only at the ends of blocks
            counts = Counter(order[:end])
            assert all(abs(counts[name] - share * end) <= 1 for name, share in SHARES.items()), end

    def test_every_set_comes_round_in_its_own_passes(self):
        order = draws(4)
        starts = {"big": 0, "mid": 400, "small": 450}
        for name, length in LENGTHS.items():
            own = [window for window in order if set_of(window) == name]
            passes = [own[start : start + length] for start in range(0, len(own) - length + 1, length)]
            assert len(passes) >= 2
            for one in passes:
                assert sorted(one) == list(range(starts[name], starts[name] + length))
            assert passes[0] != passes[1]

    def test_the_order_depends_on_seed_and_draw_alone(self):
        assert draws(2, seed=3) == draws(2, seed=3)
        assert draws(2, seed=3) != draws(2, seed=4)
        swapped = MixedTrainSampler(LENGTHS, dict(reversed(SHARES.items())), 1, seed=3)
        assert list(swapped) == draws(1, seed=3)

    @pytest.mark.parametrize("consumed", [0, 12, 96, 444, 456, 900])
    def test_ranks_and_resumes_continue_the_one_order(self, consumed):
        """456 windows a pass fit batches of 12; the next pass starts at draw 457 whatever the batch."""

        def share(**options):
            return list(MixedTrainSampler(LENGTHS, SHARES, consumed=lambda: consumed, seed=5, **options))

        endless = draws(4, seed=5)
        whole = [window for number in range(4) for window in endless[number * TOTAL :][:456]]
        assert share(batch_size=12) == whole[consumed : consumed + 456]
        ranks = [share(batch_size=4, num_replicas=3, rank=rank) for rank in range(3)]
        assert [window for step in zip(*ranks, strict=True) for window in step] == whole[consumed : consumed + 456]

    def test_a_weight_too_small_for_a_block_is_refused(self):
        with pytest.raises(UsageError, match=r"data\.mix\.rare\.weight: 0\.001 of all; it must be at least 1/100"):
            MixedTrainSampler({"common": 9, "rare": 9}, {"common": 0.999, "rare": 0.001}, 1)


def test_far_into_a_large_mix_the_order_is_found_quickly():
    lengths, shares = {"big": 50_000_000, "small": 1000}, {"big": 0.99, "small": 0.01}
    sampler = MixedTrainSampler(lengths, shares, 8, num_replicas=4, consumed=lambda: 49_000_000 // 32 * 32)
    assert 0 <= next(iter(sampler)) < 50_001_000


@pytest.mark.parametrize("limit", [None, 20])
@pytest.mark.parametrize("num_replicas", [1, 3])
def test_validation_takes_the_sets_by_their_weights(limit, num_replicas):
    options = [{"num_replicas": num_replicas, "rank": rank} for rank in range(num_replicas)]
    shares = [list(MixedValidationSampler(LENGTHS, SHARES, limit, **option)) for option in options]
    windows = sorted(window for share in shares for window in share if window >= 0)
    # Of the smallest set there are 7 windows, a fifth of 35.
    expected = {"big": 18, "mid": 10, "small": 7} if limit is None else {"big": 10, "mid": 6, "small": 4}
    assert Counter(map(set_of, windows)) == expected
    assert len({len(share) for share in shares}) == 1
    assert len(set(windows)) == len(windows)


def test_shares_become_whole_numbers_by_the_largest_remainder():
    assert apportion({"a": 0.5, "b": 0.3, "c": 0.2}, 7) == {"a": 4, "b": 2, "c": 1}
    assert apportion({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 100) == {"a": 34, "b": 33, "c": 33}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Two prepared folders of bytes, one of digits and one of letters: a window tells where it comes from."""
    work = tmp_path_factory.mktemp("sets")
    for name, line, lines in (("digits", "0123456789\n", 900), ("letters", "abcdefghij\n", 3000)):
        (work / f"{name}.jsonl").write_text("".join(f'{{"text": "{line[:-1]} {n}"}}\n' for n in range(lines)))
        request = Request(source=(str(work / f"{name}.jsonl"),), text_field="text", tokenizer="bytes", val_fraction=0.2)
        prepare(request, work / name, num_workers=1)
    return work


def mixed(sets, **options) -> TextData:
    mix = {
        "digits": {"source": str(sets / "digits"), "weight": 3.0},
        "letters": {"source": str(sets / "letters"), "weight": 1.0},
    }
    return TextData(**{"mix": mix, "seq_len": 63, "batch_size": 4} | options)


def share_of_digits(batches) -> float:
    letters = [bool(((row >= 97) & (row <= 106)).any()) for batch in batches for row in batch]
    return 1 - sum(letters) / len(letters)


def test_a_mix_trains_and_validates_on_the_sets_by_weight(sets, tmp_path):
    data = mixed(sets)
    data.prepare_data()
    seen, trainer = fit(data, tmp_path, max_steps=100, limit_val_batches=0)
    assert share_of_digits(seen) == pytest.approx(0.75, abs=0.005)
    val = [batch["input_ids"] for batch in data.val_dataloader()]
    assert share_of_digits(val) == pytest.approx(0.75, abs=0.01)
    assert (data.vocab_size, data.manifest) == (257, None)
    by_set = {name: TextData(source=str(sets / name), seq_len=63).bytes_per_token for name in ("digits", "letters")}
    assert data.bytes_per_token == pytest.approx(0.75 * by_set["digits"] + 0.25 * by_set["letters"], abs=1e-3)
    checkpoint = torch.load(
        trainer.checkpoint_callback.last_model_path or next(tmp_path.glob("*.ckpt")), weights_only=True
    )
    assert dict(TextData(**checkpoint["datamodule_hyper_parameters"]).hparams) == dict(data.hparams)


def test_a_resumed_mix_goes_on_exactly(sets, tmp_path):
    """Whatever the number of workers."""
    data = mixed(sets)
    data.setup()
    n = len(data.train_dataloader())
    options = {"max_steps": n + 6, "limit_val_batches": 0}
    whole, _ = fit(mixed(sets), tmp_path, every_n_steps=5, **options)
    assert not same_windows(whole[:6], whole[n : n + 6])
    for step, num_workers in ((n // 5 * 5, 2), ((n + 6) // 5 * 5, 0)):
        resumed, _ = fit(
            mixed(sets, num_workers=num_workers), tmp_path / "again", tmp_path / f"step={step}.ckpt", **options
        )
        assert same_windows(resumed, whole[step:]), step


def test_resuming_another_mix_is_refused(sets, tmp_path):
    fit(mixed(sets), tmp_path, every_n_steps=2, max_steps=2, limit_val_batches=0)
    heavier = mixed(sets).hparams.mix | {"letters": {"source": str(sets / "letters"), "weight": 2.0}}
    for options, complaint in [
        ({"mix": heavier}, r"mix was \{'digits': \[0\.75, .* is \{'digits': \[0\.6, "),
        ({"mix": None, "source": str(sets / "letters")}, r"windows_total was .* is None"),
    ]:
        with pytest.raises(DataError, match=f"cannot resume .*{complaint}"):
            fit(mixed(sets, **options), tmp_path, tmp_path / "step=2.ckpt", max_steps=3)


def test_what_cannot_be_mixed_is_named(sets, tmp_path):
    request = Request(source=(str(sets / "digits.jsonl"),), text_field="text", tokenizer="bpe:300", val_fraction=0.2)
    prepare(request, tmp_path / "bpe", num_workers=1)
    shutil.copytree(sets / "letters" / "train", tmp_path / "bare" / "train")
    good = {"source": str(sets / "letters"), "weight": 1}
    for other, error, complaint in [
        (
            {"source": str(tmp_path / "bpe"), "weight": 1},
            DataError,
            "another tokenizer than that of a .bpe:300, not bytes",
        ),
        ({"source": str(tmp_path / "bare"), "weight": 1}, DataError, "bare is no prepared folder"),
        ({"source": "s3://bucket/shards", "weight": 1}, UsageError, r"data\.mix\.b\.source: s3://.*prepared folder"),
        ({**good, "weight": 0}, UsageError, r"data\.mix\.b\.weight: 0; it must be a number above 0"),
        ({**good, "weight": float("nan")}, UsageError, r"data\.mix\.b\.weight: nan"),
    ]:
        with pytest.raises(error, match=complaint):
            TextData(mix={"a": good, "b": other}, seq_len=63).setup()
    with pytest.raises(UsageError, match=r"data\.mix: empty"):
        TextData(mix={})


def test_the_model_is_told_of_ids_as_with_one_set(sets):
    data = mixed(sets, document_mask=True)
    data.setup()
    assert data.id_limit == 257
    assert set(next(iter(data.train_dataloader()))) == {"input_ids", "targets", "document_ids"}


def test_the_order_of_the_sets_in_a_config_does_not_matter(sets):
    def first_batch(mix):
        data = mixed(sets, mix=mix)
        data.setup()
        return next(iter(data.train_dataloader()))["input_ids"]

    mix = mixed(sets).hparams.mix
    assert torch.equal(first_batch(mix), first_batch(dict(reversed(mix.items()))))
