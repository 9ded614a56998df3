"""A trained language model at longer contexts than it was trained with, as it is and with YaRN, on the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from joformer.frequencies import YaRN
from joformer.models import JoFormerLM
from joformer.training import LanguageTask, Processes

if TYPE_CHECKING:
    from joformer.experiments.tables import Cell


def measure(cell: Cell, task: LanguageTask, model: Any) -> dict[str, Any]:
    """What `cell.lengths` ask for: under "also" the same with YaRN, where the cell has a name for that row."""
    processes, trained, longest = Processes(), cell.lengths[0], max(cell.lengths)
    task.to(processes.device)
    model.to(processes.device).eval()
    plain = task.by_length(model, processes, cell.lengths)
    found = _kept(plain)
    if cell.yarn:
        scaled = {trained: plain[trained]}
        for length in cell.lengths[1:]:
            with yarned(model, length / trained, trained):
                scaled |= task.by_length(model, processes, (length,), targets=trained, longest=longest)
        found["also"] = {cell.yarn: _kept(scaled)}
    return found


@contextmanager
def yarned(model: JoFormerLM, factor: int | float, original: int) -> Iterator[None]:
    """Inside, the fixed frequencies are scaled by YaRN and the scores of these layers by its temperature.

    >>> from joformer.models import LMConfig
    >>> model = LMConfig(vocab=50, dim=32, layers=2, heads=2, pattern="FN").build()
    >>> with yarned(model, 4.0, 256):
    ...     model.frames[0].scaling, model.blocks[0].attention.scale > model.blocks[1].attention.scale
    (YaRN(factor=4.0, original_length=256, fast=32.0, slow=1.0), True)
    >>> model.frames[0].scaling is None
    True
    """
    yarn = YaRN(factor, original_length=original)
    layers: Any = zip(model.frames, model.blocks, strict=True)
    fixed = [(frames, block.attention) for frames, block in layers if hasattr(frames, "scaling")]
    if not fixed:
        raise ValueError("YaRN scales fixed frequencies, and this model has none: give one with frames='fixed'")
    before = [(frames.scaling, attention.scale) for frames, attention in fixed]
    try:
        for frames, attention in fixed:
            frames.scaling, attention.scale = yarn, yarn.score_scale(frames.head_dim)
        yield
    finally:
        for (frames, attention), (scaling, scale) in zip(fixed, before, strict=True):
            frames.scaling, attention.scale = scaling, scale


def _kept(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    measured = {str(n): {name: x for name, x in one.items() if name != "by_position"} for n, one in found.items()}
    return {"measured": measured, "by_position": {str(n): one["by_position"] for n, one in found.items()}}
