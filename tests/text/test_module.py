import shutil
import warnings

import lightning as L
import pytest
import torch
from recording import BATCH_SIZE, SEQ_LEN, Recorder, fit, same_windows, text_data
from torch.utils.data import DistributedSampler

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text import TextData, Tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]


@pytest.fixture(scope="module")
def batches_per_pass(prepared):
    data = text_data(prepared)
    data.setup()
    return len(data.train_dataloader())


def test_batches_are_the_windows_of_the_shards(prepared):
    data = text_data(prepared, document_mask=True, num_workers=2)
    data.setup()
    tokens = data.manifest["train"]["tokens"]
    loader = data.train_dataloader()
    batches = list(loader)
    # Lightning replaces any other sampler when it runs on several devices.
    assert isinstance(loader.sampler, DistributedSampler)
    assert isinstance(data.val_dataloader().sampler, DistributedSampler)
    assert len(batches) == len(loader) == tokens // (SEQ_LEN + 1) // BATCH_SIZE >= 10
    for batch in batches:
        assert set(batch) == {"input_ids", "targets", "document_ids"}
        assert all(value.shape == (BATCH_SIZE, SEQ_LEN) and value.dtype == torch.int64 for value in batch.values())
        assert torch.equal(batch["input_ids"][:, 1:], batch["targets"][:, :-1])
    rows = {tuple(row.tolist()) for batch in batches for row in batch["input_ids"]}
    assert len(rows) == len(batches) * BATCH_SIZE


def test_properties_describe_the_tokens(prepared):
    data = text_data(prepared)
    assert isinstance(data.tokenizer, Tokenizer)
    assert data.vocab_size == data.id_limit == 257
    val = data.manifest["val"]
    assert data.bytes_per_token == (val["tokens"] - val["documents"]) / val["tokens"]


def test_text_is_prepared_once_into_the_folder_asked_for(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"tokenizer": "bytes", "val_fraction": 0.2, "seq_len": 31}
    for directory in (None, "elsewhere"):
        data = TextData(source=[str(corpus)], dir=directory, prepare_workers=1, **options)
        data.prepare_data()
        data.prepare_data()
        assert data.vocab_size == 257
    default = next((tmp_path / "data").glob("*-bytes"))
    assert (default / "train" / "chunk-0-0.bin").read_bytes() == (
        tmp_path / "elsewhere" / "train" / "chunk-0-0.bin"
    ).read_bytes()
    with pytest.raises(DataError, match=r"data\.tokenizer: the folder has bytes, asked for bpe:300"):
        TextData(source=[str(corpus)], dir="elsewhere", val_fraction=0.2, tokenizer="bpe:300").prepare_data()


def test_shards_without_a_manifest_need_to_be_told_their_tokenizer(prepared, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(prepared / split, tmp_path / "bare" / split)
    data = text_data(tmp_path / "bare")
    assert (data.tokenizer, data.vocab_size, data.manifest, data.bytes_per_token) == (None,) * 4
    with pytest.raises(UsageError, match=r"data\.document_mask: needs data\.tokenizer"):
        text_data(tmp_path / "bare", document_mask=True).setup()
    told = text_data(tmp_path / "bare", document_mask=True, tokenizer=str(prepared / "tokenizer.json"))
    assert told.vocab_size == 257

    data.id_limit = 100  # as a model with too small a vocabulary would set it
    with pytest.raises(DataError, match=r"the shards hold id \d+, the vocabulary ends at 99"):
        fit(data, tmp_path, max_steps=20, limit_val_batches=0)


def test_a_lone_split_a_damaged_shard_and_a_mix_of_sources_are_refused(prepared, corpus, tmp_path):
    with pytest.raises(UsageError, match="is one split"):
        text_data(prepared / "train")
    with pytest.raises(UsageError, match="cannot be one of several sources"):
        TextData(source=[str(corpus), str(prepared)])
    with pytest.raises(UsageError, match=r"data\.dir: 'x'; leave it unset"):
        text_data(prepared, dir="x")
    shutil.copytree(prepared, tmp_path / "cut")
    shard = tmp_path / "cut" / "val" / "chunk-0-0.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"val/chunk-0-0\.bin: shard has"):
        text_data(tmp_path / "cut").setup()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("seq_len", 0),
        ("num_workers", -1),
        ("prepare_workers", 0),
        ("val_windows", 0),
        ("val_fraction", 0.0),
        ("val_fraction", 1.0),
        ("seed", -1),
        ("seed", 2**32),
        ("source", []),
        ("tokenizer", "bpe:12"),
        ("source", "https://host/shards"),
    ],
)
def test_bad_options_are_named(option, value):
    with pytest.raises(UsageError, match=f"data.{option}: "):
        TextData(**{option: value})


def test_too_little_text_is_refused(prepared):
    with pytest.raises(DataError, match=r"data\.seq_len: 1000000 needs windows of 1000001 tokens"):
        text_data(prepared, seq_len=1_000_000).setup()
    data = text_data(prepared, batch_size=10_000)
    data.setup()
    with pytest.raises(DataError, match=r"data\.batch_size: 10000 on 1 device\(s\) needs 10000 windows"):
        data.train_dataloader()


def test_validation_windows_are_fixed_and_limited(prepared):
    def rows(**options):
        data = text_data(prepared, batch_size=4, **options)
        data.setup()
        return torch.cat([batch["input_ids"] for batch in data.val_dataloader()]).tolist()

    everything = rows(seed=1)
    assert len(everything) > 10
    assert rows(seed=2) == everything
    assert rows(val_windows=3) == [everything[i * len(everything) // 3] for i in range(3)]


@pytest.mark.parametrize(("limit", "num_workers"), [("max_steps", 0), ("max_steps", 2), ("max_epochs", 0)])
def test_a_resumed_run_sees_exactly_the_windows_an_uninterrupted_run_sees(
    prepared, batches_per_pass, tmp_path, limit, num_workers
):
    """From saves inside a pass, at its last step, at its end, and in the second pass after it."""
    n = batches_per_pass
    options = {"val_check_interval": 4} | ({"max_steps": 2 * n + 3} if limit == "max_steps" else {"max_epochs": 2})
    data = {"num_workers": num_workers}
    whole, trainer = fit(text_data(prepared, **data), tmp_path, every_n_steps=1, **options)
    assert len(whole) == trainer.global_step == options.get("max_steps", 2 * n)
    for step, name in [
        (3, "step=3"),  # after a step
        (n, f"step={n}"),  # after the last step of a pass
        (n, f"epoch-epoch=0-step={n}"),  # at the end of a pass
        (n + 5, f"step={n + 5}"),
    ]:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*your dataloader is not resumable")
            resumed, again = fit(text_data(prepared, **data), tmp_path / "again", tmp_path / f"{name}.ckpt", **options)
        assert same_windows(resumed, whole[step:]), name
        assert again.global_step == trainer.global_step
    assert not same_windows(whole[:n], whole[n : 2 * n])


def test_a_run_resumes_from_saves_at_validation_and_on_exceptions(prepared, batches_per_pass, tmp_path):
    class Stop(L.Callback):
        def __init__(self, hook):
            self.hook = hook

        def setup(self, trainer, pl_module, stage):
            def stop(trainer, *_):
                if trainer.global_step == 4 and not trainer.sanity_checking:
                    trainer.save_checkpoint(tmp_path / f"{self.hook}.ckpt")

            setattr(self, self.hook, stop)

    options = {"max_steps": batches_per_pass + 2, "val_check_interval": 4}
    hooks = ["on_validation_end", "on_train_batch_start", "on_train_batch_end"]
    model = Recorder()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[Stop(hook) for hook in hooks],
        **options,
    )
    trainer.fit(model, datamodule=text_data(prepared, num_workers=1))
    for hook in hooks:
        resumed, _ = fit(text_data(prepared), tmp_path / "again", tmp_path / f"{hook}.ckpt", **options)
        assert same_windows(resumed, model.seen[4:]), hook


def test_epochs_cut_short_go_on_through_the_data(prepared, batches_per_pass, tmp_path):
    options = {"limit_val_batches": 0, "max_steps": batches_per_pass + 4}
    whole, _ = fit(text_data(prepared), tmp_path, **options)
    short, _ = fit(text_data(prepared), tmp_path, limit_train_batches=3, **options)
    assert same_windows(short, whole)


def test_resuming_on_other_data_or_order_is_refused(prepared, tmp_path):
    fit(text_data(prepared), tmp_path, every_n_steps=2, max_steps=2, limit_val_batches=0)
    for changes, complaint in [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"seq_len": 127}, "seq_len was 255, is 127"),
    ]:
        with pytest.raises(DataError, match=f"cannot resume .*{complaint}"):
            fit(text_data(prepared, **changes), tmp_path, tmp_path / "step=2.ckpt", max_steps=3)
    # Validation asks nothing about the order of training.
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.validate(
        Recorder(), datamodule=text_data(prepared, seed=1), ckpt_path=tmp_path / "step=2.ckpt", verbose=False
    )


@pytest.mark.parametrize(("batch_size", "accumulated"), [(8, 1), (24, 1), (12, 2), (16, 3)])
def test_steps_of_another_size_go_on_with_the_next_window(batch_size, accumulated, prepared, tmp_path):
    """48 windows are 6 steps of 8, 2 of 24, and one of 48."""
    options = {"max_steps": 7, "limit_val_batches": 0}
    fit(text_data(prepared), tmp_path, every_n_steps=3, **{**options, "max_steps": 3})
    other = text_data(prepared, batch_size=batch_size), tmp_path / "again"
    options["accumulate_grad_batches"] = accumulated
    whole, _ = fit(*other, **{**options, "max_steps": 10})
    resumed, trainer = fit(*other, tmp_path / "step=3.ckpt", **options)
    assert trainer.global_step == 7
    assert len(resumed) == 4 * accumulated
    assert same_windows(resumed, whole[48 // batch_size :][: len(resumed)])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 10}, r"10 on 1 device\(s\) is 10 windows a step, it was 16: the 48 windows of this pass"),
        ({"accumulated": 2}, r"16 on 1 device\(s\), 2 accumulated, is 32 windows a step, it was 16: the 48 windows"),
        (
            {"batch_size": 8, "max_epochs": 2},
            r"8 on 1 device\(s\) is 8 windows a step, it was 16: a run that is limited by epochs",
        ),
    ],
)
def test_steps_of_another_size_that_cannot_go_on_are_refused(options, complaint, prepared, tmp_path):
    fit(text_data(prepared), tmp_path, every_n_steps=3, max_steps=3, limit_val_batches=0)
    limit = {"max_epochs": options["max_epochs"]} if "max_epochs" in options else {"max_steps": 7}
    data = text_data(prepared, batch_size=options.get("batch_size", BATCH_SIZE))
    with pytest.raises(DataError, match=f"data.batch_size: {complaint}"):
        fit(data, tmp_path, tmp_path / "step=3.ckpt", accumulate_grad_batches=options.get("accumulated", 1), **limit)


def test_epochs_bear_another_batch_size_of_the_same_step(prepared, batches_per_pass, tmp_path):
    options = {"max_epochs": 1, "limit_val_batches": 0}
    fit(text_data(prepared), tmp_path, every_n_steps=3, **options)
    data = text_data(prepared, batch_size=8)
    whole, _ = fit(data, tmp_path / "a", accumulate_grad_batches=2, **options)
    assert len(whole) == 2 * batches_per_pass
    resumed, _ = fit(data, tmp_path / "b", tmp_path / "step=3.ckpt", accumulate_grad_batches=2, **options)
    assert same_windows(resumed, whole[6:])


def test_the_checkpoint_carries_the_options_and_loads_as_plain_data(prepared, tmp_path):
    data = text_data(prepared, num_workers=0, seed=5)
    fit(data, tmp_path, every_n_steps=2, max_steps=2, limit_val_batches=0)
    checkpoint = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    again = TextData(**checkpoint["datamodule_hyper_parameters"])
    assert dict(again.hparams) == dict(data.hparams)
    windows = data.manifest["train"]["tokens"] // (SEQ_LEN + 1)
    sizes = {"batch_windows": BATCH_SIZE, "step_windows": BATCH_SIZE}
    expected = {"epoch": 0, "windows_seen": 2 * BATCH_SIZE, "batches": 2, **sizes}
    assert checkpoint["TextData"] == expected | {"windows_total": windows, "seq_len": SEQ_LEN, "seed": 5}
