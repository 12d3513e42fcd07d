"""The Trainer of transformers with a routed model: accumulation counts tokens, checkpointing changes no gradient."""

import pytest
import torch
from hf_models import exported, opened
from tiny import VOCAB
from transformers import Trainer, TrainingArguments

LENGTHS = [3, 9, 9, 2, 5, 9, 4, 7]  # tokens that count differ by micro-batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trainer") / "routed-trained"
    torch.manual_seed(0)
    exported(path, "delta-block", num_blocks=2, gate="alpha")
    return path


def rows():
    draw = torch.Generator().manual_seed(5)
    for length in LENGTHS:
        ids = torch.randint(VOCAB, (9,), generator=draw)
        seen = torch.arange(9) < length
        yield {"input_ids": ids, "attention_mask": seen.long(), "labels": ids.masked_fill(~seen, -100)}


class Recording(Trainer):
    """Keeps the gradients of the first step."""

    def create_optimizer(self, *args):
        optimizer = super().create_optimizer(*args)
        optimizer.register_step_pre_hook(self.record)
        return optimizer

    def record(self, *_):
        self.gradients = {name: value.grad.clone() for name, value in self.model.named_parameters()}


def one_step(folder, output, batch, accumulated, **options):
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulated,
        max_steps=1,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    trainer = Recording(model=opened(folder), args=arguments, train_dataset=list(rows()))
    trainer.train()
    return trainer.state.log_history[0]["loss"], trainer.gradients, trainer


def test_accumulated_over_micro_batches_as_in_one(folder, tmp_path):
    loss, gradients, trainer = one_step(folder, tmp_path, 8, 1)
    batch = {name: torch.stack([row[name] for row in rows()]) for name in next(rows())}
    logits = opened(folder)(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    exact = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert trainer.model_accepts_loss_kwargs
    assert loss == pytest.approx(exact.item(), rel=1e-4)
    for options in ({"gradient_checkpointing": False}, {"gradient_checkpointing": True}):
        accumulated, summed, _ = one_step(folder, tmp_path, 2, 4, **options)
        assert accumulated == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(summed, gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_gradient_checkpointing(folder, reentrant):
    """The kind that sees no further than its arguments would lose the gradients of the sources."""
    ids = torch.stack([row["input_ids"] for row in rows()])
    found = []
    for checkpointed in (False, True):
        model = opened(folder).train()
        if checkpointed:
            kwargs = None if reentrant is None else {"use_reentrant": reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
            assert model.is_gradient_checkpointing
        outputs = model(ids, labels=ids, use_cache=False)
        outputs.loss.backward()
        found.append([outputs.loss, *(parameter.grad for parameter in model.parameters())])
    assert all(map(torch.equal, *found))


def test_no_cache_where_layers_run_twice(folder):
    model = opened(folder).train()
    model.gradient_checkpointing_enable()
    ids = next(rows())["input_ids"][None]
    assert model(ids).past_key_values is None
    with torch.no_grad():
        cache = model(ids).past_key_values
    with pytest.raises(ValueError, match="a cache cannot be used in training with gradient checkpointing"):
        model(ids, past_key_values=cache)
