"""Sharpness in validation, its pictures, and what networks of known routing must log."""

from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image

from lightning_dar.callbacks import RoutingSharpness
from lightning_dar.diagnostics.probe import RoutingProbe, mean_sharpness
from runs import RandomTokens, Scramble, events, fit, language_model


def test_validation_agrees_with_a_probe(tmp_path):
    module = language_model()
    trainer = fit(tmp_path, RoutingSharpness(every_n_steps=2, val_batches=2), model=module, val_check_interval=6)
    logged = events(trainer)
    assert [event.step for event in logged.Scalars("routing/sharpness")] == [1, 3, 5]

    probe = RoutingProbe(module.model.residual, 6)
    for batch in RandomTokens().batches[10:12]:
        module.model(batch["input_ids"], residual=probe)
    final = logged.Scalars("val/sharpness")[-1].value
    assert final == pytest.approx(mean_sharpness(probe.sites, 6), rel=1e-5)
    deep = logged.Scalars("val/sharpness_deep")[-1].value
    assert deep == pytest.approx(mean_sharpness(probe.sites, 6, third="deep"), rel=1e-5)


@pytest.mark.draws
def test_pictures_are_images_in_the_logs_and_files(tmp_path):
    callback = RoutingSharpness()
    trainer = fit(tmp_path, Scramble(), callback, max_steps=2, val_check_interval=1, limit_val_batches=1)
    logged = events(trainer)
    for name, file in (("heat map", "routing.png"), ("by depth", "routing_by_depth.png")):
        images = logged.Images(f"routing/{name.replace(' ', '_')}")
        assert [event.step for event in images] == [0, 1]
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in images)
        assert Path(callback.pictures[name]) == Path(trainer.log_dir) / file
        assert np.asarray(Image.open(callback.pictures[name])).std() > 12, "not a blank picture"


def test_the_first_step_of_zero_queries_is_uniform(tmp_path):
    logged = events(fit(tmp_path, RoutingSharpness(every_n_steps=1), max_steps=1, limit_val_batches=0))
    for site in range(1, 6):
        value = {name: logged.Scalars(f"routing_sites/{name}_{site:02d}")[0].value for name in ("sharpness", "entropy")}
        assert value == {"sharpness": pytest.approx(1 / (site + 1), rel=1e-7), "entropy": pytest.approx(1, rel=1e-7)}


class PickTheEmbedding(L.Callback):
    """Outputs that have no part along the first dimension, embeddings that are all of it, queries along it."""

    def on_fit_start(self, trainer, pl_module):
        with torch.no_grad():
            model = pl_module.model
            for sublayer in model.sublayers:
                out = sublayer.o_proj if hasattr(sublayer, "o_proj") else sublayer.down_proj
                out.weight[0] = 0
            model.embed.weight.zero_()[:, 0] = 1
            model.residual.query[:, 0] = 100.0


def test_a_query_that_picks_one_source_gives_it_all_the_weight(tmp_path):
    run = fit(tmp_path, PickTheEmbedding(), RoutingSharpness(every_n_steps=1), max_steps=1, limit_val_batches=0)
    logged = events(run)
    for name, value in {"sharpness": 1, "entropy": 0, "effective_sources": 1, "share_embedding": 1}.items():
        assert logged.Scalars(f"routing/{name}")[0].value == pytest.approx(value, abs=1e-6), name
