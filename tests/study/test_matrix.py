"""Cells from a config of a study."""

import pytest

from lightning_dar.errors import UsageError
from lightning_dar.study.matrix import StudyConfig, Variant, cells_of, merged

STEPS = {"trainer.max_steps": 5}


def test_cells_are_variants_by_seeds_and_keep_seeds_together():
    study = StudyConfig(
        output="out",
        settings=STEPS,
        seeds=[3, 4],
        variants={"standard": Variant(seeds=[3, 4, 5]), "other": Variant(settings={"model.residual.name": "attnres"})},
    )
    names = [cell.name for cell in cells_of(study)]
    assert names == ["standard/seed_3", "other/seed_3", "standard/seed_4", "other/seed_4", "standard/seed_5"]


def test_a_cell_has_its_seed_in_weights_and_data_and_logs_into_its_own_folder():
    study = StudyConfig(output="out", settings=STEPS, seeds=[7], variants={"standard": Variant()})
    (cell,) = cells_of(study)
    assert cell.settings["seed_everything"] == cell.settings["data"]["seed"] == 7
    logger = cell.settings["trainer"]["logger"]["init_args"]
    assert (logger["save_dir"], logger["version"]) == (str(cell.folder.path), "fit")
    assert cell.max_steps == 5


def test_configs_are_overridden_by_settings_and_those_by_the_variant(tmp_path):
    config = tmp_path / "base.yaml"
    config.write_text("model: {num_layers: 2, residual: {name: attnres, options: {num_blocks: 2}}}\ndata: {seq_len: 8}")
    study = StudyConfig(
        output="out",
        configs=[str(config)],
        settings={**STEPS, "data": {"batch_size": 3}},
        variants={"standard": Variant(settings={"model.residual.options.num_blocks": 4, "data.seq_len": 16})},
    )
    (cell,) = cells_of(study)
    assert cell.settings["model"] == {"num_layers": 2, "residual": {"name": "attnres", "options": {"num_blocks": 4}}}
    assert cell.settings["data"] == {"seq_len": 16, "batch_size": 3, "seed": 0}


def test_merged_replaces_lists_and_does_not_change_its_arguments():
    first, second = {"a": {"b": [1, 2], "c": 1}}, {"a.b": [3], "a.d": {"e": 2}}
    assert merged(first, second) == {"a": {"b": [3], "c": 1, "d": {"e": 2}}}
    assert first == {"a": {"b": [1, 2], "c": 1}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {}}, "variants: none"),
        ({"variants": {"../x": Variant()}}, "no name of a folder"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": []}, "at least one"),
        ({"baseline": "nothing"}, "there are standard"),
        ({"threads": 0}, "threads=0"),
        ({"settings": {}}, "max_steps=None"),
        ({"settings": {"trainer.max_steps": -1}}, "max_steps=-1"),
        ({"configs": ["missing.yaml"]}, "missing.yaml cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    study = {"output": "out", "settings": STEPS, "variants": {"standard": Variant()}}
    with pytest.raises(UsageError, match=message):
        cells_of(StudyConfig(**{**study, **changes}))
