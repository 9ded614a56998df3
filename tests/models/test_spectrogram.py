"""The encoder of spectrograms, and the pairs of vision models: scores alone, and scores with values."""

import dataclasses

import pytest
import torch

from joformer import positions
from joformer.models import VARIANTS, JoFormerViT, ViTConfig

# docs/conventions.md, "Readings": each row of the paper's table in both versions.
PAIRS = {
    "rope2d": "joformer_old",
    "monoidal_axial": "joformer_axial",
    "monoidal_axial_perlayer": "joformer_axial_perlayer",
    "rope2dv2": "joformer_fixed",
    "rope2dv2_literal": "joformer_fixed_literal",
    "monoidal": "joformer",
    "monoidal_perlayer": "joformer_perlayer",
    "axial_dense": "axial_dense_v",
    "liere64": "liere64_v",
}


def test_every_model_of_the_table_has_both_versions():
    assert set(VARIANTS) == {*PAIRS, *PAIRS.values(), "learned", "projected", "cumulative", "none"}
    for scores, both in PAIRS.items():
        assert VARIANTS[scores].transport == "scores"
        assert VARIANTS[both] == dataclasses.replace(VARIANTS[scores], transport="both")
    assert VARIANTS["learned"].transport == "none"  # a vector for each position moves neither
    assert len({*VARIANTS.values()}) == len(VARIANTS)


def test_the_small_encoder():
    config = ViTConfig.spectrogram(64, 100, classes=7)
    assert (config.patch, config.grid, config.prefix, config.channels) == ((16, 4), (4, 25), 0, 1)
    assert (config.dim, config.layers, config.heads, config.pool) == (64, 4, 4, "mean")
    with torch.device("meta"):
        assert sum(p.numel() for p in JoFormerViT(config).parameters()) < 250_000
    changed = ViTConfig.spectrogram(80, 98, 7, model="rope2d", dim=32, patch=(8, 7), pool="cls", registers=2)
    assert (changed.name, changed.grid, changed.prefix) == ("rope2d", (10, 14), 3)
    assert ViTConfig.spectrogram(40, 101, 7).patch == (10, 1)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_model_listens_to_recordings_of_any_length(name):
    torch.manual_seed(0)
    model = JoFormerViT(ViTConfig.spectrogram(32, 12, classes=3, model=name, dim=32, layers=2, heads=2))
    assert model(torch.randn(2, 1, 32, 12)).shape == (2, 3)
    if name == "learned":
        with pytest.raises(ValueError, match="bound to its grid"):
            model(torch.randn(2, 1, 32, 20))
    else:
        logits = [model(torch.randn(2, 1, 32, frames)) for frames in (4, 20)]
        assert [each.shape for each in logits] == [(2, 3)] * 2
        sum(each.square().sum() for each in logits).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.numel())


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "learned"])
def test_when_a_sound_starts_does_not_matter(name, monkeypatch):
    """Journeys see displacements alone, except those of LieRE, whose generators do not commute."""
    torch.manual_seed(0)
    model = JoFormerViT(ViTConfig.spectrogram(32, 20, classes=3, model=name, dim=32, layers=2, heads=2)).double().eval()
    x = torch.randn(2, 1, 32, 20, dtype=torch.float64)
    logits, grid = model(x), positions.grid
    changes = []
    for later in (0, 1000):
        start = torch.tensor([0, later], dtype=torch.float64)
        monkeypatch.setattr(positions, "grid", lambda *shape, start=start, **how: grid(*shape, **how) + start)
        changes.append((model(x) - logits).abs().max())
    assert changes[0] == 0
    assert changes[1] > 1e-4 if name.startswith("liere") else changes[1] < 1e-6


def test_frequency_and_time_are_told_apart():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 4, 4)
    for name in ("rope2d", "joformer_axial", "joformer_fixed", "liere64_v"):
        config = ViTConfig.spectrogram(4, 4, 3, model=name, patch=(1, 1), dim=32, layers=1, heads=2)
        model = JoFormerViT(config).eval()
        assert (model(x) - model(x.mT)).abs().max() > 1e-5


@pytest.mark.refused
def test_refusals_are_one_line():
    for make in (lambda: ViTConfig.spectrogram(0, 10, 2), lambda: ViTConfig.spectrogram(64, 10, 2, patch=(16, 4))):
        with pytest.raises(ValueError, match=r"spectrogram has 1 band|does not divide") as error:
            make()
        assert "\n" not in str(error.value)
