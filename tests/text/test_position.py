"""A resumed run sees the windows that are due, whatever was asked of the loaders before its position was restored."""

from functools import partial

import lightning as L
import pytest
from recording import BATCH_SIZE, fit, same_windows, text_data
from torch.utils.data import DistributedSampler, SequentialSampler

from lightning_dar.errors import DataError
from lightning_dar.text import TextData

pytestmark = [
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]
# The first ones make the loader before the loops are restored.
HOOKS = ["setup", "configure_optimizers", "on_fit_start", "on_train_start"]


class AsksForSteps(L.Callback):
    """As the schedule of many models does, and some callbacks."""

    def __init__(self, hook):
        self.asked = 0

        def ask(trainer, *_, **__):
            self.asked += trainer.estimated_stepping_batches

        if hook == "configure_optimizers":  # a hook of the model, which Lightning calls between those two
            self.setup = lambda trainer, pl_module, stage: setattr(pl_module, hook, asking(ask, trainer, pl_module))
        else:
            setattr(self, hook, ask)


def asking(ask, trainer, pl_module):
    original = pl_module.configure_optimizers

    def configure_optimizers():
        ask(trainer)
        return original()

    return configure_optimizers


def seen_by(data, tmp_path, *args, hook, **options):
    asks = AsksForSteps(hook)
    seen, trainer = fit(data, tmp_path, *args, callbacks=[asks], **options)
    assert asks.asked > 0
    return seen, trainer


def check_resumes(make_data, tmp_path, hook, steps, **options):
    """Resumed from those steps, a run sees the rest of what the undisturbed one saw, and does its steps."""
    whole, trainer = seen_by(make_data(), tmp_path, hook=hook, every_n_steps=1, **options)
    last, before = trainer.global_step, trainer.lightning_module.steps
    for step in (step for step in steps if step < last):
        path = tmp_path / f"step={step}.ckpt"
        resumed, again = seen_by(make_data(), tmp_path / "again", path, hook=hook, **options)
        assert same_windows(resumed, whole[sum(number < step for number in before) :]), f"from step {step} of {last}"
        assert (again.global_step, again.current_epoch) == (last, trainer.current_epoch)


def few_batches(prepared, num_workers):
    """Makes the data, of 4 batches per pass."""
    return lambda: text_data(prepared, num_workers=num_workers, batch_size=13 * BATCH_SIZE)


@pytest.mark.parametrize("hook", HOOKS)
def test_it_does_not_matter_who_asks_for_the_number_of_steps_and_when(hook, prepared, tmp_path):
    check_resumes(few_batches(prepared, 1), tmp_path, hook, [6], max_epochs=3, max_steps=9)


OPTIONS = {
    "epochs": {"max_epochs": 3},
    "epochs and steps": {"max_epochs": 5, "max_steps": 11},
    "epochs of some batches": {"limit_train_batches": 2, "max_epochs": 4},
    "epochs of half the batches": {"limit_train_batches": 0.5, "max_epochs": 5},
    "accumulation": {"accumulate_grad_batches": 2, "max_epochs": 4},
    "accumulation in epochs of some batches": {"accumulate_grad_batches": 2, "limit_train_batches": 3, "max_epochs": 4},
    "new loaders every epoch": {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3},
    "new loaders every other epoch": {"reload_dataloaders_every_n_epochs": 2, "max_epochs": 4, "max_steps": 14},
    "validation inside an epoch": {"val_check_interval": 2, "max_epochs": 3},
    "validation at halves of an epoch": {"val_check_interval": 0.5, "max_epochs": 3},
    "validation across epochs": {"val_check_interval": 3, "check_val_every_n_epoch": None, "max_epochs": 3},
    "validation every other epoch": {"check_val_every_n_epoch": 2, "max_epochs": 3},
    "no sanity check": {"num_sanity_val_steps": 0, "max_epochs": 3},
    "the same batches": {"overfit_batches": 2, "max_epochs": 5},
    "the same share of the batches": {"overfit_batches": 0.5, "max_epochs": 5, "max_steps": 9},
    "the same batches, accumulated": {"overfit_batches": 3, "accumulate_grad_batches": 2, "max_epochs": 4},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    ("num_workers", "steps"),
    [(1, [5]), *(pytest.param(workers, range(1, 20), marks=pytest.mark.slow) for workers in (0, 2))],
)
def test_options_of_the_trainer(name, num_workers, steps, prepared, tmp_path):
    check_resumes(few_batches(prepared, num_workers), tmp_path, "configure_optimizers", steps, **OPTIONS[name])


class SavesAt(L.Callback):
    """Saves HOOK-STEP.ckpt in some hooks."""

    HOOKS = ("on_train_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_epoch_start")

    def __init__(self, folder, steps):
        def save(hook, trainer, *_):
            if trainer.global_step in steps and not trainer.sanity_checking:
                trainer.save_checkpoint(folder / f"{hook}-{trainer.global_step}.ckpt")

        for hook in self.HOOKS:
            setattr(self, hook, partial(save, hook))


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 50},
        {"limit_val_batches": 0, "max_steps": 50},
        {"limit_val_batches": 0},
        {"check_val_every_n_epoch": 2},
        {"accumulate_grad_batches": 2, "val_check_interval": 2},
    ],
    ids=str,
)
def test_the_end_of_an_epoch_saved_by_any_hook_twice(options, prepared, tmp_path):
    """Epochs end the run; it goes on from the end of the first, and then from inside and from the end of the second."""
    options = {"max_epochs": 3, "callbacks": [], **options}
    pass_steps = 4 // options.get("accumulate_grad_batches", 1)
    inside, end = pass_steps + 1, 2 * pass_steps

    def go_on(folder, source, steps):
        folder.mkdir(exist_ok=True)
        saves = [SavesAt(folder, steps)]
        seen, trainer = fit(few_batches(prepared, 0)(), folder, source, **{**options, "callbacks": saves})
        assert (trainer.current_epoch, trainer.global_step) == (3, 3 * pass_steps), source
        return seen

    whole = go_on(tmp_path, None, [pass_steps])
    firsts = sorted(tmp_path.glob("on_*.ckpt"))
    assert len(firsts) >= 3
    for first in firsts:
        again = tmp_path / first.stem
        assert same_windows(go_on(again, first, [inside, end]), whole[4:]), first.stem
        for second in sorted(again.glob("on_*.ckpt")):
            left = whole[4 * int(second.stem.rpartition("-")[2]) // pass_steps :]
            assert same_windows(go_on(tmp_path / "twice", second, []), left), (first.stem, second.stem)


def test_an_epoch_that_the_number_of_steps_cut_short_goes_on(prepared, tmp_path):
    options = {"max_epochs": 3, "limit_val_batches": 0}
    whole, _ = fit(few_batches(prepared, 0)(), tmp_path / "a", **options)
    fit(few_batches(prepared, 0)(), tmp_path / "b", max_steps=6, **options)
    path = tmp_path / "b/epoch-epoch=1-step=6.ckpt"
    resumed, trainer = fit(few_batches(prepared, 0)(), tmp_path / "b", path, max_steps=50, **options)
    assert same_windows(resumed, whole[6:])
    assert trainer.current_epoch == 3


def test_the_windows_of_a_mix(prepared, tmp_path):
    mix = {name: {"source": str(prepared), "weight": weight} for name, weight in (("one", 0.7), ("other", 0.3))}

    def make():
        return TextData(mix=mix, seq_len=255, batch_size=13 * BATCH_SIZE, num_workers=1)

    check_resumes(make, tmp_path, "configure_optimizers", [5], limit_train_batches=4, max_epochs=3)


def test_overfitting_sees_the_same_batches_in_every_epoch(prepared, tmp_path):
    seen, trainer = fit(few_batches(prepared, 0)(), tmp_path, overfit_batches=2, max_epochs=3)
    whole, _ = fit(few_batches(prepared, 0)(), tmp_path, max_epochs=1)
    assert same_windows(seen, whole[:2] * 3)
    for loader in (trainer.train_dataloader, trainer.val_dataloaders):  # as Lightning asks of them
        assert isinstance(loader.sampler, SequentialSampler)
        assert isinstance(loader.sampler, DistributedSampler)


class Reads(L.Callback):
    """Reads a training batch in a hook, from a loader of its own or from the trainer's."""

    def __init__(self, hook, of_the_trainer=False):
        self.batches = []

        def read(trainer, *_, **__):
            assert trainer.estimated_stepping_batches > 0
            loader = trainer.train_dataloader if of_the_trainer else trainer.datamodule.train_dataloader()
            self.batches.append(next(iter(loader))["input_ids"])

        setattr(self, hook, read)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_batch_end"])
def test_whoever_reads_a_batch_takes_none_away(hook, num_workers, prepared, tmp_path):
    """It is the one that is due next, also where a checkpoint has been opened and the loops are not restored yet."""
    options = {"max_epochs": 2, "limit_val_batches": 0}
    whole, _ = fit(few_batches(prepared, 0)(), tmp_path, every_n_steps=2, **options)
    reads = Reads(hook, of_the_trainer=True)
    seen, _ = fit(few_batches(prepared, num_workers)(), tmp_path / "a", callbacks=[reads], **options)
    assert same_windows(seen, whole)
    assert same_windows(reads.batches[:2], whole[:1] if hook == "on_fit_start" else whole[1:3])
    again = Reads(hook)
    resumed = fit(few_batches(prepared, 0)(), tmp_path / "b", tmp_path / "step=2.ckpt", callbacks=[again], **options)
    assert same_windows(resumed[0], whole[2:])
    assert same_windows(again.batches[:2], whole[2:3] if hook == "on_fit_start" else whole[3:5])


class Saves(L.Callback):
    def on_fit_start(self, trainer, pl_module):
        trainer.save_checkpoint("early.ckpt")


@pytest.mark.parametrize("early", [Reads("setup"), Saves()], ids=["reads", "saves"])
def test_a_position_that_nobody_knows_yet_is_an_error(early, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"max_epochs": 2, "limit_val_batches": 0, "callbacks": [early]}
    fit(few_batches(prepared, 0)(), tmp_path, every_n_steps=2, **options)  # a run that begins is at its beginning
    with pytest.raises(DataError, match="before .* restored"):
        fit(few_batches(prepared, 0)(), tmp_path / "b", tmp_path / "step=2.ckpt", **options)


def test_a_strategy_that_restores_late_lets_nobody_know_before(prepared, tmp_path, monkeypatch):
    """As those do that shard the model."""
    from lightning.pytorch.strategies import SingleDeviceStrategy

    options = {"max_epochs": 2, "limit_val_batches": 0}
    whole, _ = fit(few_batches(prepared, 0)(), tmp_path, every_n_steps=2, **options)
    monkeypatch.setattr(SingleDeviceStrategy, "restore_checkpoint_after_setup", True)
    late = few_batches(prepared, 1)(), tmp_path / "b", tmp_path / "step=2.ckpt"
    resumed, _ = seen_by(*late, hook="on_fit_start", **options)
    assert same_windows(resumed, whole[2:])
    with pytest.raises(DataError, match="read before the position"):
        fit(*late, callbacks=[Reads("on_fit_start")], **options)


def test_one_data_module_serves_several_trainers(prepared, tmp_path):
    data, options = few_batches(prepared, 0)(), {"max_steps": 6, "limit_val_batches": 0}
    whole, _ = fit(data, tmp_path, every_n_steps=3, **options)
    resumed, _ = fit(data, tmp_path / "a", tmp_path / "step=3.ckpt", **options)
    assert same_windows(resumed, whole[3:])
    anew, _ = fit(data, tmp_path / "b", **options)
    assert same_windows(anew, whole)
