"""Text as tokens on disk: any size, from any source (documents.py), encoded once.

    bytes ──cut──▸ train, valid, test ──pieces──▸ tokens ──▸ one memory-mapped file per split

Splits: where the source names them, those; a missing valid or test is cut from the end of train, 5 % of its bytes each
(`percent`), so that text without splits is cut 90 / 5 / 5. A cut that falls inside a character moves to its end.

Pieces: text is read a little at a time, twice, and encoded in pieces of at most 64 KiB that end before a space or a
newline after a word, where BPE never joins: the tokens are those of the text encoded whole, on any machine. (Only
64 KiB without such a place are cut between any two characters.) BPE is trained on train alone, its first 50 MB.
"""

from __future__ import annotations

import codecs
import itertools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from joformer._log import Progress, counted, logger
from joformer.training.data.cache import cached
from joformer.training.data.documents import Document, Documents, open_text, stdlib_source, stream
from joformer.training.data.files import Place, content_hash
from joformer.training.data.sources import Source, log, resolve, summary
from joformer.training.data.tokenizer import Stream, Tokenizer, threads

__all__ = ["Stream", "Text", "Tokenizer", "load_text", "stdlib_source", "windows"]

SPLITS = ("train", "valid", "test")
PIECE, BATCH, SAMPLE = 1 << 16, 64, 50_000_000
NOTES = "notes.json"
FORMAT = 1  # counts up when the same source would give other tokens than before: old caches are then not found
WORD_END = re.compile(r"[ \n](?=\S)")  # of text read backwards


@dataclass(frozen=True)
class Text:
    """Three splits as 1-D memory-mapped arrays of token ids: uint8 for bytes, else uint16, uint32 above 65,536 tokens.

    `fingerprint` is the sha256 of text, splits and tokens: runs with the same fingerprint saw the same data.

    >>> Text(train=[1, 2], valid=[3], test=[4], tokenizer=Tokenizer.of_bytes(), fingerprint="12ab").valid
    [3]
    """

    train: Any
    valid: Any
    test: Any
    tokenizer: Tokenizer
    fingerprint: str


def load_text(
    source: Place | Source,
    *,
    vocab: int = 8000,
    tokenizer: Tokenizer | None = None,
    column: str | None = None,
    percent: int = 5,
    cache: Place | None = None,
) -> Text:
    """The text of a source as tokens, from the cache if it was prepared before; a summary is logged.

    Args:
        source: A name, a path, or what `resolve` returned.
        vocab: 256 means bytes, a larger number trains a BPE; a text too small for this many tokens gets fewer.
        tokenizer: Used instead of training one, such as that of a trained model.
        column: The text column of a table; "text" or the only one by default.
        percent: Size of a missing valid or test split, each in percent of train.
        cache: Cache folder for tokens.

    Returns:
        The tokens of all splits.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("to be or not to be, that is the question\\n" * 5)
    ...     text = load_text(Path(folder, "a.txt"), vocab=256, cache=Path(folder, "cache"))
    ...     text.tokenizer.decode(text.train[:5]), len(text.train), len(text.valid), len(text.test)
    ('to be', 184, 10, 11)
    """
    import numpy as np

    if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 256:
        raise ValueError(f"vocab {vocab!r} must be a whole number, 256 (bytes) or more: try 8000")
    if isinstance(percent, bool) or not isinstance(percent, int) or not 0 < percent < 50:
        raise ValueError(f"percent {percent!r} of the text cannot be held out: give a whole number from 1 to 49")
    source = resolve(source, kind="text", column=column)
    documents, shown = open_text(source), str(source.path or source.spec)
    content = content_hash(*documents.identity)

    def build(folder: Path) -> None:
        _build(folder, shown, documents, tokenizer or vocab, percent)
        if content_hash(*documents.identity) != content:  # else its tokens would be kept under another text's hash
            raise ValueError(f"{shown} changed while it was being read: start again when it is complete")

    made_with = vocab if tokenizer is None else tokenizer.definition()
    cut = [] if percent == 5 else [f"{percent} %"]
    key = f"text-{content_hash(FORMAT, PIECE, SAMPLE, made_with, content, *cut)[:32]}"
    folder = cached(key, build, cache=cache)
    used = Tokenizer.load(folder / "tokenizer.json")
    splits = {split: np.memmap(folder / f"{split}.bin", _dtype(used), "r") for split in SPLITS}
    sizes = {split: len(tokens) for split, tokens in splits.items()}
    unit = "bytes" if used.vocab == 256 else f"tokens of a vocabulary of {used.vocab:,}"
    kept = json.loads((folder / NOTES).read_bytes()) if (folder / NOTES).is_file() else []
    notes = [*documents.notes, *((level, line) for level, line in kept)]
    if missing := [split for split in SPLITS if split not in documents.parts]:
        notes.append(
            (logging.INFO, f"no {' and no '.join(missing)} split: cut from the end of train, {percent} % each")
        )
    if tokenizer is None and used.vocab < vocab:
        notes.append((logging.WARNING, f"the text is too small for {vocab:,} tokens: it gives {used.vocab:,}"))
    log(summary(source.name, "text", sizes, unit, notes=notes))
    return Text(**splits, tokenizer=used, fingerprint=(folder / "fingerprint").read_text())


def windows(tokens: Any, starts: Tensor, length: int) -> Int[Tensor, "batch length"]:
    """(batch, length) int64: `tokens[start : start + length]` for each of the (batch,) starts, in one gather.

    >>> import numpy as np
    >>> windows(np.arange(10, dtype=np.uint16), torch.tensor([0, 6]), 4)
    tensor([[0, 1, 2, 3],
            [6, 7, 8, 9]])
    """
    import numpy as np

    last = len(tokens) - length
    if length < 1 or last < 0:
        raise ValueError(f"windows of {length} tokens do not fit into {len(tokens)}: use shorter ones or more text")
    at = starts.cpu().numpy()
    if at.size and not 0 <= at.min() <= at.max() <= last:
        raise ValueError(f"starts from {at.min()} to {at.max()} are outside the {len(tokens)} tokens: use 0 to {last}")
    # Rows of a view of every window: no index for every token, three times as fast as with one.
    every = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), length)
    return torch.from_numpy(every[at].astype(np.int64))


def _build(folder: Path, source: str, documents: Documents, wanted: Tokenizer | int, percent: int) -> None:
    logger.info(f"reading {source}")
    parts = documents.parts
    cuts = _cuts(parts, percent)
    first = {name: _Reading(part, keep=SAMPLE if name == "train" else 0) for name, part in parts.items()}
    for name, reading in first.items():
        for _ in reading:
            pass
        if not reading.size:
            raise ValueError(f"{source} holds no text{f' for {name}' if len(parts) > 1 else ''}: give a file that does")
    tokenizer, vocab = (Tokenizer.of_bytes(), wanted) if isinstance(wanted, int) else (wanted, 0)
    if vocab > 256:
        sample = bytes(first["train"].kept[: first["train"].size * cuts["train"]["train"] // 100])
        logger.info(f"training BPE with {vocab:,} tokens on {len(sample):,} bytes")
        tokenizer = Tokenizer.train(_pieces([codecs.utf_8_decode(sample, "strict", False)[0].encode()]), vocab)
    total = sum(reading.size for reading in first.values())
    with Progress("encoding", total, unit="bytes") as progress:
        for name, splits in cuts.items():
            again = _Reading(parts[name])
            ends = [first[name].size * percent // 100 for percent in splits.values()]
            for place, run in itertools.groupby(_cut(again, ends), key=lambda pair: pair[0]):
                with (folder / f"{list(splits)[place]}.bin").open("wb") as file:
                    for tokens, size in _encoded(tokenizer, (chunk for _, chunk in run)):
                        file.write(tokens)
                        progress.advance(size)
            if again.digest() != first[name].digest():
                raise ValueError(f"{source} changed while it was being read: start again when it is complete")
    for split in SPLITS:
        if not (folder / f"{split}.bin").is_file():
            raise ValueError(f"{source} leaves nothing for {split}: {total} bytes are too few, give more text")
    if decoded := documents.decoded:
        files, encodings = counted(len(decoded), "file"), sorted({*decoded.values()})
        text = f"{files} in {' and '.join(encodings)}, decoded: {next(iter(decoded)).name}"
        (folder / NOTES).write_text(json.dumps([(logging.INFO, text)]))
    tokenizer.save(folder / "tokenizer.json")
    content = [item for name in cuts for item in (first[name].digest(), repr(cuts[name]))]
    (folder / "fingerprint").write_text(content_hash(*content, tokenizer.definition()))


class _Reading:
    """A part as it is read: how many bytes, their sha256, and the first `keep` of them."""

    def __init__(self, part: Callable[[], Iterable[Document]], keep: int = 0) -> None:
        self._part, self._keep, self._sum = part, keep, sha256()
        self.size, self.kept = 0, bytearray()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in stream(self._part()):
            self.size += len(chunk)
            self._sum.update(chunk)
            self.kept += chunk[: self._keep - len(self.kept)]
            yield chunk

    def digest(self) -> str:
        return self._sum.hexdigest()


def _cuts(parts: Collection[str], percent: int) -> dict[str, dict[str, int]]:
    """For each part the splits it is cut into, each with the per cent of the part's bytes where it ends."""
    missing = [split for split in SPLITS if split not in parts]
    ends = {split: 100 - percent * (len(missing) - 1 - i) for i, split in enumerate(missing)}
    train = {"train": 100 - percent * len(missing), **ends}
    return {"train": train} | {name: {name: 100} for name in SPLITS[1:] if name in parts}


def _cut(chunks: Iterable[bytes], ends: list[int]) -> Iterator[tuple[int, bytes]]:
    """Chunks with the number of their split: one ends at the first character boundary at or after its end."""
    place = position = 0
    for chunk in chunks:
        rest = chunk
        while place < len(ends) - 1:
            at = max(ends[place] - position, 0)
            while at < len(rest) and rest[at] & 0xC0 == 0x80:
                at += 1
            if at >= len(rest):
                break
            if at:
                yield place, rest[:at]
            place, position, rest = place + 1, position + at, rest[at:]
        yield place, rest
        position += len(rest)


def _pieces(chunks: Iterable[bytes]) -> Iterator[str]:
    """The text in pieces that are a function of the text alone, however its bytes come in chunks."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) > PIECE:
            text, _ = codecs.utf_8_decode(bytes(held[:PIECE]), "strict", False)
            found = WORD_END.search(text[::-1])
            piece = text[: -found.end()] if found else text
            yield piece
            del held[: len(piece.encode())]
    if held:
        yield held.decode()


def _encoded(tokenizer: Tokenizer, chunks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """The tokens of a text as they are in a file, a little at a time, and how many bytes of text they stand for."""
    import numpy as np

    if tokenizer.engine is None:
        yield from ((chunk, len(chunk)) for chunk in chunks)
        return
    pieces = _pieces(chunks)
    while batch := list(itertools.islice(pieces, BATCH)):
        with threads():
            encoded = tokenizer.engine.encode_batch_fast(batch)
        for piece, encoding in zip(batch, encoded, strict=True):
            yield np.array(encoding.ids, _dtype(tokenizer)).tobytes(), len(piece.encode())


def _dtype(tokenizer: Tokenizer) -> str:
    return "<u1" if tokenizer.vocab <= 256 else "<u2" if tokenizer.vocab <= 65536 else "<u4"
