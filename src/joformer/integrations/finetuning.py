"""Training a causal language model on while its values come to be transported: text, loss, transformers' Trainer.

    step   0 ────────────▸ steps ─────────▸ steps + settle
    s      start  (Anneal)   end    settle    end

Windows begin at random places of the text, drawn beforehand: step n sees the same ones in a run that was never
interrupted and in one that was. A checkpoint counts only with the list of its files, which is written last.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from joformer.files import synchronise, write_json
from joformer.integrations.annealing import Anneal
from joformer.training.checkpoints import require_room
from joformer.training.data import Text, windows
from joformer.training.data.tokenizer import threads
from joformer.training.draws import generator

HELD_OUT = 200
"""Windows that the loss is measured on."""
PIECE = 1 << 16
WHOLE = "whole.json"
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")

Progress = Callable[[int, int, float], object]


def tokenizer_of(folder: Path, config: Any) -> Any:
    """The folder's own tokenizer, or None where it has none."""
    if not any(found for name in TOKENIZERS for found in folder.glob(name)):
        return None
    try:
        # With the configuration: that of a transported folder is refused by whoever reads it without joformer.
        return AutoTokenizer.from_pretrained(str(folder), config=config, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"the tokenizer in {folder} cannot be loaded: {one_line(error)}") from None


def tokens_of(data: Any, tokenizer: Any, enough: int) -> Any:
    """The tokens of text given as bytes (a 1-D array of uint8); of long text, of pieces of it until there are enough.

    >>> import numpy as np
    >>> tokens_of(np.frombuffer(b"to be", np.uint8), None, enough=100).tolist()
    [116, 111, 32, 98, 101]
    """
    import numpy as np

    if tokenizer is None:
        return data
    found: dict[int, Any] = {}
    total = 0
    for at in torch.randperm(-(-len(data) // PIECE), generator=generator(0, "pieces")).tolist():
        start, end = (_boundary(data, edge * PIECE) for edge in (at, at + 1))
        with threads():
            ids = tokenizer(bytes(data[start:end]).decode(), add_special_tokens=False, verbose=False)["input_ids"]
        found[at] = np.array(ids, np.int64)
        total += len(ids)
        if total >= enough:
            break
    return np.concatenate([found[at] for at in sorted(found)])


def _boundary(data: Any, at: int) -> int:
    """The first place from `at` on where a character begins."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))


@dataclass(frozen=True)
class Tokens:
    """Text for one model: what it is trained on, and what is held out."""

    train: Any
    valid: Any
    context: int

    @classmethod
    def of(cls, text: Text, model: Any, tokenizer: Any, context: int | None, wanted: int) -> Tokens:
        """The text's bytes as tokens of the model, for `wanted` windows of training; what does not fit is refused."""
        vocab = model.get_input_embeddings().num_embeddings
        if tokenizer is None and vocab < 256:
            raise ValueError(
                f"the folder has no tokenizer, and {vocab} tokens are too few to take bytes: put its tokenizer there"
            )
        positions = getattr(model.config, "max_position_embeddings", None) or 512
        if context is not None and context > positions:
            raise ValueError(f"a context of {context} tokens is more than the {positions} positions of the model")
        context = context or min(512, positions)
        train = tokens_of(text.train, tokenizer, wanted * context)
        valid = tokens_of(text.valid, tokenizer, HELD_OUT * context)
        for name, ids in (("train on", train), ("hold out", valid)):
            if len(ids) < context:
                raise ValueError(
                    f"the text gives {len(ids)} tokens to {name}, fewer than one context of {context}: give more text, "
                    "or a shorter context"
                )
            if int(ids.max()) >= vocab:
                raise ValueError(
                    f"the tokenizer gives token {int(ids.max())}, the model has {vocab}: put its own tokenizer there"
                )
        return cls(train, valid, context)


@torch.no_grad()
def held_out_loss(model: Any, tokens: Tokens, batch: int) -> float:
    """Mean −log p(next token), in nats, on windows spread evenly over the text that is held out."""
    last = len(tokens.valid) - tokens.context
    count = min(HELD_OUT, last // tokens.context + 1)
    starts = torch.linspace(0, last, count, dtype=torch.float64).long()
    was, total = model.training, 0.0
    model.eval()
    for mine in starts.split(batch):
        ids = windows(tokens.valid, mine, tokens.context).to(model.device)
        total += len(mine) * float(model(input_ids=ids, labels=ids, use_cache=False).loss)
    model.train(was)
    return total / count


@dataclass(frozen=True)
class Course:
    """How a model is trained on."""

    anneal: Anneal
    settle: int
    batch: int
    lr: float
    seed: int
    save_every: int

    @property
    def steps(self) -> int:
        return self.anneal.steps + self.settle


def train_on(model: Any, tokens: Tokens, course: Course, folder: Path, progress: Progress | None = None) -> None:
    """Train the model, whose values are transported, along the course; checkpoints are in `folder`, or come there."""
    used = model.config.use_cache
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=course.steps, per_device_train_batch_size=course.batch,
        learning_rate=course.lr, lr_scheduler_type="cosine", warmup_steps=course.steps // 20, weight_decay=0.0,
        seed=course.seed, save_strategy="steps", save_steps=course.save_every, save_total_limit=2,
        logging_strategy="no", report_to="none", disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=torch.accelerator.is_available(),
    )  # fmt: skip
    arguments._n_gpu = min(1, arguments.n_gpu)  # else a step would be of as many batches as there are GPUs
    before = latest(folder)
    if before is None:
        require_room(folder, 3 * sum(p.numel() * p.element_size() for p in model.parameters()))
    callbacks = [course.anneal, *([] if progress is None else [_Shown(course, progress)])]
    trainer = _Trainer(
        model=model, args=arguments, callbacks=callbacks,
        train_dataset=_Windows(tokens, course.steps * course.batch, course.seed),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=None if before is None else str(before))
    finally:
        model.config.use_cache = used


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in the folder; what is newer was never finished, and is removed.

    >>> latest(Path("nowhere")) is None
    True
    """
    named = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    for path in sorted(named, key=lambda path: int(path.name.split("-")[1]), reverse=True):
        if _is_whole(path):
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None


def one_line(error: Exception) -> str:
    """The first line of what an error says.

    >>> one_line(ValueError("too long\\nand more"))
    'too long'
    """
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return said.splitlines()[0]


def _is_whole(path: Path) -> bool:
    try:
        files = json.loads((path / WHOLE).read_bytes())["files"]
        return bool(files) and all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


class _Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """As many windows as a run takes, in its order."""

    def __init__(self, tokens: Tokens, count: int, seed: int) -> None:
        self.tokens = tokens
        last = len(tokens.train) - tokens.context
        self.starts = torch.randint(last + 1, (count,), generator=generator(seed, "windows"))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        ids = windows(self.tokens.train, self.starts[at : at + 1], self.tokens.context)[0]
        return {"input_ids": ids, "labels": ids}


class _Trainer(Trainer):
    """Takes the windows in their order, and knows which of its checkpoints are whole."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        place = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(*args, **kwargs)
            files = [path for path in place.iterdir() if path.is_file()]
            for path in files:
                synchronise(path)
        except (OSError, RuntimeError, SafetensorError) as error:  # torch says RuntimeError where the disk is full
            shutil.rmtree(place, ignore_errors=True)
            raise ValueError(
                f"cannot save the checkpoint {place}: {one_line(error)}; make room and start the same command again"
            ) from None
        write_json(place / WHOLE, {"files": {path.name: path.stat().st_size for path in files}})


class _Shown(TrainerCallback):
    """Tells how far the training is."""

    def __init__(self, course: Course, progress: Progress) -> None:
        self.course, self.progress = course, progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress(state.global_step, state.max_steps, self.course.anneal(state.global_step))

    on_step_end = on_train_begin
