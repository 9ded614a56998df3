"""`joformer convert`: value transport for the folder of a Hugging Face model, at once or annealed in."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from joformer._log import counted, logger
from joformer.cli.console import say


@dataclass(frozen=True)
class Convert:
    """Add value transport to a Hugging Face model: at once, or annealed in over a fine-tuning run.

    If interrupted, the same command resumes. Fine-tuning alone lowers the loss as well: to see whether transport helps,
    compare with a model fine-tuned without it. Example:
    joformer convert llama-1b llama-1b-jo --anneal 1000 --data notes.txt

    Attributes:
        model_dir: The model's folder: config.json and safetensors, as save_pretrained writes them.
        out: The folder to write.
        strength: Final strength, the share of the positions' angles applied to the values: 0 is none, 1 is full
            transport.
        off: Remove transport instead: the result needs only transformers.
        anneal: Fine-tune a causal language model while its strength rises over this many steps.
        settle: Further steps at full strength; by default a quarter of --anneal.
        data: Text to fine-tune on, a part of it held out: stdlib (Python's own source, the default with --anneal),
            wikipedia, openwebtext, or a file or folder, also gz, xz, zst, parquet. Without --anneal, only the loss is
            measured.
        context: Tokens in a window; 512 by default, or as many positions as the model has.
        batch: Windows per step.
        lr: Peak learning rate.
        power: How the strength rises: 1 is linear, 2 starts slowly.
        seed: Seed of the choice of windows and of dropout.
        save_every: Steps between two checkpoints; a tenth of all by default.
        json: Print the record as JSON.
    """

    model_dir: Annotated[Path, tyro.conf.Positional]
    out: Annotated[Path, tyro.conf.Positional]
    strength: float = 1.0
    off: bool = False
    anneal: int | None = None
    settle: int | None = None
    data: str | None = None
    context: int | None = None
    batch: int = 8
    lr: float = 1e-4
    power: float = 1.0
    seed: int = 0
    save_every: int | None = None
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer.integrations._convert import convert
        from joformer.training import Stopped

        options = asdict(self)
        as_json = options.pop("json")
        try:
            record = convert(**options)
        except Stopped as stopped:
            logger.warning(f"joformer: {stopped}")
            return stopped.code
        for line in [json.dumps(record)] if as_json else self._sentences(record):
            say(line)
        return 0

    def _sentences(self, record: dict[str, Any]) -> list[str]:
        plain = self.off or not self.strength
        what = "no longer transported" if plain else f"transported, strength {self.strength:g}"
        then = "; the model now computes a different function: fine-tune it"
        if self.anneal is not None:
            then = f" after {counted(record['steps'], 'step')} of fine-tuning"
        lines = [f"{self.out}: its values are {what}{then}"]
        if "loss_after" in record:
            before, after = record["loss_before"], record["loss_after"]
            lines.append(f"held-out loss {before:.4f} of {self.model_dir}, {after:.4f} of {self.out}")
        how = f"transformers.{record['kind']}.from_pretrained" if plain else "joformer.integrations.load"
        return [*lines, f'load it with {how}("{self.out}")']
