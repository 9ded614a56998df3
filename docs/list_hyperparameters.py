"""Lists the hyper-parameters of the paper's tables beside those of the code, from the code: docs/hyperparameters.md.

    python docs/list_hyperparameters.py            writes the page
    python docs/list_hyperparameters.py --check    exits with 1 if the page is out of date

What the paper states is `joformer.paper.STATED`; the code's values are read from the tables as they are planned at the
paper's scale, with stand-ins of the data's shapes. A difference without a reason in `REASONS` is an error.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from joformer import paper
from joformer.cli import Reproduce
from joformer.experiments import TABLES, ImageSource, Table, TextSource
from joformer.training import Images, augmentation
from joformer.training.data.images import Labelled

PAGE = Path(__file__).resolve().parent / "hyperparameters.md"
SHAPES = {
    "mnist": ((1, 28, 28), 60_000, 10),
    "cifar100": ((3, 32, 32), 50_000, 100),
    "imagenet": ((3, 224, 224), 1_281_167, 1000),
}
READ = ("mnist", "cifar100", "imagenet", "wikipedia", "length", "overhead")
REASONS = {
    "seeds": "several, for intervals; the paper has one",
    "pattern": "16 layers do not tile by 6 (claims, row 56)",
    "scored at each length": "the same text at every length; how large an iteration is, the paper does not say",
    "hardware": "whatever it is run on",
}
"""Why the code has another value than the paper states."""


def stand_in(source: Any) -> Any:
    """What a table asks of its data: shapes, classes, a vocabulary."""
    if isinstance(source, TextSource):
        return SimpleNamespace(tokenizer=SimpleNamespace(vocab=source.vocab), fingerprint="")
    shape, count, classes = SHAPES[source.data]
    with torch.device("meta"):
        train = Labelled(torch.empty(count, *shape, dtype=torch.uint8), torch.empty(count, dtype=torch.int64))
    return Images(train, train, tuple(map(str, range(classes))), "")


def planned() -> list[Table]:
    """The paper's tables at its scale, one seed."""
    before = ImageSource.load, TextSource.load
    try:
        ImageSource.load = TextSource.load = stand_in  # type: ignore[method-assign, assignment]
        return [table for name in READ for table in TABLES[name]("paper", None, (0,), None, True)]
    finally:
        ImageSource.load, TextSource.load = before  # type: ignore[method-assign]


def used(table: Table) -> dict[str, str]:
    """The hyper-parameters of a table, by the same names and in the same words as the paper's."""
    cells, first = table.cells, table.cells[0]
    config, recipe, source = first.config, first.recipe, first.source
    stages, found = recipe.sequence, dict[str, str]()
    if table.recipe == "mnist":
        found |= {"widths": several(cell.config.dim for cell in cells), "hidden units": str(config.hidden)}
    else:
        wide = {cell.config.hidden or 4 * cell.config.dim for cell in cells}
        feed = "4 × width" if all(cell.config.hidden is None for cell in cells) else several(wide)
        found |= {
            "widths": several(cell.config.dim for cell in cells),
            "layers": several(cell.config.layers for cell in cells),
            "heads": several(cell.config.heads for cell in cells),
            "feed-forward": feed,
        }
    if table.recipe not in ("mnist", "cifar100", "wikipedia"):
        most = max(cell.parameters for cell in cells)
        found["parameters"] = f"{most / 1e6:.1f} M" if most < 2e7 else f"{most / 1e6:.0f} M"
    if isinstance(source, TextSource):
        found |= {"vocabulary": f"{source.vocab:,}", "context": f"{source.context:,}"}
        if table.protocol:
            found |= {
                "pattern": config.pattern,
                "window": str(config.window),
                "lengths": several(f"{n:,}" for n in first.lengths),
                "scored at each length": f"{source.held_out} windows of {source.context}, the same",
            }
        held = f"{source.percent} %" if source.percent else "5 %"
        found["held out"] = held + ("" if source.held_out is None else f", of which {source.held_out} windows")
    elif hasattr(config, "patch"):
        found |= {"image": " × ".join(map(str, config.shape)), "patch": " × ".join(map(str, config.patch))}
    if first.alone:
        found |= {"optimiser": "AdamW", "hardware": "one device"}
    else:
        ends = {f"{recipe.end * stage.lr:g}" for stage in stages}
        found |= {
            "optimiser": "AdamW" if recipe.weight_decay else "Adam",
            "learning rate": several(f"{stage.lr:g}" for stage in stages),
            "schedule": "constant" if recipe.end == 1 else "cosine" + (" in every stage" if len(stages) > 1 else ""),
            "final learning rate": several(sorted(ends, key=float, reverse=True)),
            "warm-up": warm_up(recipe.warmup, source),
            "weight decay": f"{recipe.weight_decay:g}",
            "betas": several(f"{beta:g}" for beta in recipe.betas),
            "epsilon": f"{inspect.signature(torch.optim.AdamW).parameters['eps'].default:g}",
            "clip": "none" if recipe.clip is None else f"norm {recipe.clip:g}",
        }
    found |= {"batch": f"{source.batch:,}", "accumulation": str(recipe.accumulate), "precision": recipe.precision}
    if isinstance(source, TextSource):
        found["steps"] = " + ".join(f"{stage.steps:,}" for stage in stages)
    else:
        per_epoch = len(stand_in(source).train) / source.batch
        found["epochs"] = several(f"{cell.recipe.total / per_epoch:.0f}" for cell in cells)
        found |= {"batches": source.draw, **augmented(source)}
    found |= {name: f"{getattr(config, key):g}" for name, key in DROPPED if hasattr(config, key)}
    (count,) = next(field.default for field in Reproduce.__dataclass_fields__.values() if field.name == "seeds")
    return found | ({} if first.alone else {"seeds": f"0 to {count - 1}"})


DROPPED = (("dropout", "dropout"), ("drop path", "drop_path"))


def augmented(source: ImageSource) -> dict[str, str]:
    """What a step makes of the images."""
    augment, mix = augmentation(source.augment, stand_in(source))
    if augment is None or source.augment == "none":
        return {"augmentation": "none"}
    size = "" if augment.erase_size is None else f", {augment.erase_size} × {augment.erase_size}, {augment.erase_with}"
    scale = 3 if augment.rand_as == "timm" else 1  # timm counts to 10, we to 30
    rand = f"{augment.rand_ops} operations, magnitude {augment.rand_magnitude:g}"
    if scale == 3:
        rand = f"magnitude {augment.rand_magnitude / scale:g}, deviation {augment.rand_std / scale:g}"
    return {
        "label smoothing": f"{mix.smoothing if mix else 0:g}",
        "mixup": f"{mix.mixup if mix else 0:g}",
        "CutMix": f"{mix.cutmix if mix else 0:g}",
        "crop": f"pad {augment.crop_pad}, {augment.crop_border}" if augment.crop_pad else "random, resized",
        "flip": f"{augment.flip:g}",
        "RandAugment": rand if augment.rand_ops else "none",
        **({"RandAugment, whose": "timm's, 2 operations, each half of the time"} if scale == 3 else {}),
        "erasing": f"{augment.erase:g}{size}" if augment.erase else "none",
        **({"erased with": augment.erase_with} if augment.erase and augment.erase_size is None else {}),
        "normalisation": f"{several(f'{m:g}' for m in augment.mean)}; {several(f'{s:g}' for s in augment.std)}",
    }


def several(values: Iterable[Any]) -> str:
    """Each of them once."""
    return ", ".join(dict.fromkeys(map(str, values)))


def warm_up(steps: int, source: Any) -> str:
    """In epochs, where it is whole ones."""
    epoch = None if isinstance(source, TextSource) else round(len(stand_in(source).train) / source.batch)
    return f"{steps // epoch} epochs" if steps and epoch and steps % epoch == 0 else f"{steps:,} steps"


def page() -> str:
    """The whole page."""
    parts = [
        "# Hyper-parameters\n",
        "What the paper states and what the code has at `--scale paper`, one line each, written by",
        "`python docs/list_hyperparameters.py` from the code. Where the paper leaves a value open it is ours;",
        "[conventions](conventions.md) says how it was read.",
    ]
    for table in planned():
        ours, stated = used(table), paper.STATED[table.recipe]
        parts += [
            f"\n## {table.recipe}: {table.title}\n",
            f"Rows: {'; '.join(table.models)}.\n",
            "| | the paper | the code | |",
            "|---|---|---|---|",
        ]
        for name in dict.fromkeys([*ours, *stated]):
            mine, theirs = ours.get(name, "none"), stated.get(name)
            if theirs is not None and theirs != mine and name not in REASONS:
                raise SystemExit(f"{table.recipe}, {name}: the paper states {theirs}, the code has {mine}: say why")
            same = "not stated: ours" if theirs is None else "same" if theirs == mine else REASONS[name]
            parts.append(f"| {name} | {theirs or ''} | {mine} | {same} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if PAGE.read_text(encoding="utf-8") == page() else f"{PAGE.name} is out of date: write it")
    PAGE.write_text(page(), encoding="utf-8")
