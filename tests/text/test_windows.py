import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.loading import IGNORE_INDEX, PADDING, TrainSampler, ValidationSampler, Windows, collate, is_url

CHUNK_TOKENS = [70, 64, 33, 71]  # with windows of 9: 7, 7, 3 and 7 of them, dropping 7, 1, 6 and 8 tokens


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A split of four chunks whose ids count up from 1000."""
    from litdata.streaming import Cache
    from litdata.streaming.item_loader import TokensLoader

    folder = tmp_path_factory.mktemp("shards")
    cache = Cache(input_dir=str(folder), chunk_size=1, item_loader=TokensLoader())
    start = 1000
    for index, size in enumerate(CHUNK_TOKENS):
        cache[index] = torch.arange(start, start + size, dtype=torch.int32)
        start += size
    cache.done()
    cache.merge()
    return folder


def expected_windows(window):
    ids = np.arange(1000, 1000 + sum(CHUNK_TOKENS))
    chunks = np.split(ids, np.cumsum(CHUNK_TOKENS)[:-1])
    return [chunk[i : i + window].tolist() for chunk in chunks for i in range(0, len(chunk) - window + 1, window)]


@pytest.mark.parametrize("prefix", ["", "local:"], ids=["folder", "remote"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_windows_cover_every_chunk_up_to_its_tail(shards, prefix, num_workers, monkeypatch, tmp_path):
    monkeypatch.setattr("litdata.utilities.dataset_utilities._DEFAULT_CACHE_DIR", str(tmp_path))
    windows = Windows(prefix + str(shards), seq_len=8)
    expected = expected_windows(9)
    assert len(windows) == len(expected) == 24
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
    assert windows[23].tolist() == expected[23]  # read in the parent first: workers must not inherit its state
    assert windows[0].dtype == torch.int64
    assert pickle.loads(pickle.dumps(windows))[5].tolist() == expected[5]  # as spawned workers get it
    loader = DataLoader(windows, batch_size=None, sampler=order, num_workers=num_workers)
    assert [window.tolist() for window in loader] == [expected[i] for i in order]


def test_too_few_tokens_and_foreign_shards_are_refused(shards, tmp_path):
    with pytest.raises(DataError, match=r"data\.seq_len: 100 needs windows of 101 tokens, .* 238 tokens in 4 shard"):
        Windows(str(shards), seq_len=100)
    with pytest.raises(DataError, match="nowhere"):
        Windows(str(tmp_path / "nowhere"), seq_len=8)
    index = json.loads((shards / "index.json").read_text())
    index["config"]["item_loader"] = "PyTreeLoader"
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="PyTreeLoader"):
        Windows(str(tmp_path), seq_len=8)


def test_urls_that_cannot_hold_token_shards_are_refused():
    assert is_url("s3://bucket/shards")
    assert not is_url("some/folder")
    for url in ("https://host/shards", "hf://datasets/x"):
        with pytest.raises(UsageError, match="s3://"):
            is_url(url)


def test_collate_shifts_targets_and_numbers_documents():
    end = 9
    batch = collate(
        [torch.tensor([1, 2, 9, 3, 9, 9, 4]), torch.tensor([9, 1, 2, 3, 4, 5, 9]), torch.full((7,), -1)],
        document_end_id=end,
    )
    assert batch["input_ids"].tolist() == [[1, 2, 9, 3, 9, 9], [9, 1, 2, 3, 4, 5], [0] * 6]
    assert batch["targets"].tolist() == [[2, 9, 3, 9, 9, 4], [1, 2, 3, 4, 5, 9], [IGNORE_INDEX] * 6]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1], [0] * 6]
    assert {name: value.dtype for name, value in batch.items()} == dict.fromkeys(batch, torch.int64)
    assert set(collate([torch.tensor([1, 2])])) == {"input_ids", "targets"}


@pytest.fixture
def small_pools(monkeypatch):
    monkeypatch.setattr("lightning_dar.text.loading.POOL", 10)


@pytest.mark.usefixtures("small_pools")
class TestTrainSampler:
    def test_a_pass_shuffles_pools_and_the_windows_in_them(self):
        order = list(TrainSampler(105, batch_size=1, seed=3))
        assert sorted(order) == list(range(105))
        pools = [window // 10 for window in order]
        visits = [pool for i, pool in enumerate(pools) if i == 0 or pools[i - 1] != pool]
        assert sorted(visits) == list(range(11))  # each pool is read once, in one go
        assert visits != sorted(visits)
        assert order[:10] != sorted(order[:10])

    def test_the_order_depends_on_seed_and_pass_alone(self):
        def windows(**kwargs):
            return list(TrainSampler(105, batch_size=1, **kwargs))

        assert windows(seed=3) == windows(seed=3)
        assert windows(seed=3) != windows(seed=4)
        assert windows(seed=3) != windows(seed=3, consumed=lambda: 105)
        sampler = TrainSampler(105, batch_size=1, seed=3)
        sampler.set_epoch(5)
        assert list(sampler) == windows(seed=3)

    def test_ranks_are_disjoint_equal_and_together_the_order_of_one(self):
        alone = list(TrainSampler(107, batch_size=12, seed=1))
        assert len(alone) == 96
        ranks = [list(TrainSampler(107, batch_size=4, num_replicas=3, rank=r, seed=1)) for r in range(3)]
        assert [len(rank) for rank in ranks] == [32, 32, 32]
        interleaved = [window for step in zip(*ranks, strict=True) for window in step]
        assert interleaved == alone

    @pytest.mark.parametrize(("replicas", "batch_size", "accumulated"), [(4, 6, 1), (2, 6, 2), (1, 6, 4), (2, 3, 4)])
    def test_a_step_has_the_same_windows_however_it_is_shared(self, replicas, batch_size, accumulated):
        """Steps of 24 windows; a pass leaves out 11 of 107, which would be a batch where ranks are few."""
        whole = [list(TrainSampler(107, batch_size=24, seed=1, consumed=lambda n=n: n * 96)) for n in range(2)]
        how = {"batch_size": batch_size, "num_replicas": replicas, "accumulated": accumulated, "seed": 1}
        ranks = [TrainSampler(107, rank=rank, consumed=lambda: 48, **how) for rank in range(replicas)]
        interleaved = [window for step in zip(*ranks, strict=True) for window in step]
        assert interleaved == [*whole[0][48:], *whole[1][:48]]

    @pytest.mark.parametrize("batches", [1, 5, 8, 9, 20])
    def test_a_resumed_iteration_continues_where_training_stopped(self, batches):
        """Against an uninterrupted run of three passes, 8 batches of 2 ranks x 6 windows each."""

        def share(rank, consumed):
            return list(TrainSampler(107, batch_size=6, num_replicas=2, rank=rank, seed=1, consumed=lambda: consumed))

        for rank in range(2):
            whole = [window for number in range(4) for window in share(rank, number * 96)]
            assert share(rank, batches * 12) == whole[batches * 6 : batches * 6 + 48]


def test_millions_of_windows_are_ordered_quickly():
    sampler = TrainSampler(50_000_000, batch_size=8, num_replicas=4, rank=1, consumed=lambda: 49_000_000 // 32 * 32)
    first = next(iter(sampler))  # would time out if the windows before it were walked one by one
    assert 0 <= first < 50_000_000


@pytest.mark.parametrize(("limit", "expected"), [(None, range(10)), (4, [0, 2, 5, 7]), (99, range(10))])
@pytest.mark.parametrize("num_replicas", [1, 3])
def test_validation_is_a_fixed_set_padded_to_equal_shares(limit, expected, num_replicas):
    shares = [list(ValidationSampler(10, limit, num_replicas=num_replicas, rank=r)) for r in range(num_replicas)]
    assert len({len(share) for share in shares}) == 1
    everything = [window for share in shares for window in share]
    assert sorted(window for window in everything if window != PADDING) == list(expected)
    assert everything.count(PADDING) == -len(expected) % num_replicas
