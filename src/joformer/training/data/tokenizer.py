"""Byte-level BPE: every text is a sequence of tokens, every token a sequence of bytes, nothing is unknown or lost.

    Σ bytes_per_token[encode(text)] = len(text.encode())        so that bits per byte compare across vocabularies

Tokens are trained with `tokenizers` and kept in its own JSON, read here as data: no code runs, and what is not exactly
such a tokenizer raises ValueError. With vocab = 256 tokens are the bytes themselves, and `tokenizers` is not needed.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from joformer._io import one_line, read_json, write_whole

# BPE's files spell a byte as one printable character (GPT-2's table): itself, or for the others one from 256 on.
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_SPELLED = {byte: chr(byte) for byte in _PRINTED}
_SPELLED |= {byte: chr(256 + rank) for rank, byte in enumerate(sorted(set(range(256)) - set(_PRINTED)))}
_BYTE = {letter: byte for byte, letter in _SPELLED.items()}
# The process whose threads `tokenizers` has started: a fork of it has none, and would wait for them for ever.
_threads_of: set[int] = set()


@dataclass(frozen=True, repr=False)
class Tokenizer:
    """`tokens[i]` are the bytes of token i, below 256 the byte i; `merges` are the BPE pairs in the order learned.

    >>> tokenizer = Tokenizer.of_bytes()
    >>> tokenizer.vocab, tokenizer.encode("né"), tokenizer.decode([110, 195, 169])
    (256, [110, 195, 169], 'né')
    >>> tokenizer = Tokenizer.train(["to be or not to be"], vocab=258)
    >>> [tokenizer.tokens[token] for token in tokenizer.encode("to be")]
    [b'to', b' ', b'be']
    """

    tokens: tuple[bytes, ...]
    merges: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of_bytes(cls) -> Tokenizer:
        """The 256 bytes and nothing else.

        >>> Tokenizer.of_bytes().encode("A")
        [65]
        """
        return cls(tuple(bytes([byte]) for byte in range(256)))

    @classmethod
    def train(cls, texts: Iterable[str], vocab: int) -> Tokenizer:
        """BPE learned from the texts; fewer than `vocab` tokens where they hold too few pairs to join.

        The same texts in the same order give the same tokens in every process and with any number of threads.

        >>> Tokenizer.train(["abab abab"], vocab=300).tokens[256:]
        (b'ab', b'abab', b' abab')
        """
        if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 256:
            raise ValueError(f"vocab {vocab!r} must be a whole number, 256 (bytes) or more: try 8000")
        if vocab == 256:
            return cls.of_bytes()
        from tokenizers import Tokenizer as Engine
        from tokenizers import models, pre_tokenizers, trainers

        engine = Engine(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        settings: dict[str, Any] = {"initial_alphabet": list(_BYTE), "special_tokens": [], "show_progress": False}
        with threads():
            engine.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, **settings))
        learned = json.loads(engine.to_str())["model"]
        order = sorted(learned["vocab"], key=lambda spelling: (len(spelling) > 1, learned["vocab"][spelling]))
        tokens = [_unspelled(spelling) for spelling in order]
        merges = [(_unspelled(left), _unspelled(right)) for left, right in learned["merges"]]
        return cls((*sorted(tokens[:256]), *tokens[256:]), tuple(merges))

    @property
    def vocab(self) -> int:
        """The vocabulary size.

        >>> Tokenizer.of_bytes().vocab
        256
        """
        return len(self.tokens)

    @cached_property
    def bytes_per_token(self) -> Int[Tensor, "vocab"]:
        """(vocab,) how many bytes of text each token stands for.

        >>> Tokenizer.of_bytes().bytes_per_token.unique()
        tensor([1])
        """
        return torch.tensor([len(token) for token in self.tokens], dtype=torch.int64)

    @cached_property
    def engine(self) -> Any:
        """The `tokenizers.Tokenizer` that encodes; none is needed for bytes.

        >>> Tokenizer.of_bytes().engine is None
        True
        """
        if not self.merges:
            return None
        from tokenizers import Tokenizer as Engine

        return Engine.from_str(self.definition())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text.

        >>> Tokenizer.of_bytes().encode("to")
        [116, 111]
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode at character {error.start}: give it as UTF-8") from None
        return list(data) if self.engine is None else self.engine.encode(text).ids

    def decode(self, ids: Any) -> str:
        """The text of tokens, given as a list, a tensor or an array; invalid bytes become U+FFFD.

        >>> Tokenizer.of_bytes().decode(torch.tensor([116, 111]))
        'to'
        """
        listed = ids.tolist() if hasattr(ids, "tolist") else ids
        return b"".join(map(self._bytes, listed)).decode("utf-8", errors="replace")

    def stream(self) -> Stream:
        """Streams text from tokens, never half a character.

        >>> stream = Tokenizer.of_bytes().stream()
        >>> [stream.feed(token) for token in "né".encode()]
        ['n', '', 'é']
        """
        return Stream(self)

    def definition(self) -> str:
        """The full definition as JSON of `tokenizers`: the content of tokenizer.json.

        >>> json.loads(Tokenizer.of_bytes().definition())["model"]["type"]
        'BPE'
        """
        return json.dumps(_definition(self.tokens, self.merges)) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the definition atomically.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     Tokenizer.of_bytes().save(Path(folder) / "tokenizer.json")
        ...     Tokenizer.load(Path(folder) / "tokenizer.json") == Tokenizer.of_bytes()
        True
        """
        write_whole(Path(path), self.definition().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """What `save` wrote, as data; anything else raises ValueError in one line.

        >>> Tokenizer.load("nowhere.json")
        Traceback (most recent call last):
        ValueError: cannot read nowhere.json: No such file or directory
        """
        try:
            return _parsed(read_json(path))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {one_line(error)}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = f"damaged or not one of our tokenizers ({one_line(error)})"
            raise ValueError(f"{path} is {reason}: copy it from the run again") from None

    @classmethod
    def of_gpt2(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokens of GPT-2's tokenizer.json: the same pieces of text, the 256 bytes numbered by their value.

        Its tokens that no text holds (``<|endoftext|>``) are left out.

        >>> Tokenizer.of_gpt2("nowhere.json")
        Traceback (most recent call last):
        ValueError: cannot read nowhere.json: No such file or directory
        """
        try:
            definition = read_json(path)
            model, level = definition["model"], definition["pre_tokenizer"]
            special = {token["content"] for token in definition.get("added_tokens") or ()}
            known = {spelling: place for spelling, place in model["vocab"].items() if spelling not in special}
            order = sorted(known, key=lambda spelling: (len(_unspelled(spelling)) > 1, known[spelling]))
            tokens = [_unspelled(spelling) for spelling in order]
            pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
            merges = tuple((_unspelled(left), _unspelled(right)) for left, right in pairs)
            if level["type"] != "ByteLevel" or level.get("add_prefix_space") or not level.get("use_regex", True):
                raise ValueError("it splits text differently from GPT-2's")
            return _parsed(_definition((*sorted(tokens[:256]), *tokens[256:]), merges))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {one_line(error)}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a byte-level BPE like GPT-2's ({one_line(error)}): give its tokenizer.json"
            ) from None

    def __repr__(self) -> str:
        return f"Tokenizer(vocab={self.vocab})"

    def _bytes(self, token: int) -> bytes:
        if not 0 <= token < len(self.tokens):
            raise ValueError(f"token {token} is not in the vocabulary: use 0 … {len(self.tokens) - 1}")
        return self.tokens[token]


class Stream:
    """What has become certain of a text whose tokens come one by one: the pieces join to `Tokenizer.decode` of all.

    >>> stream = Tokenizer.of_bytes().stream()
    >>> stream.feed(195), stream.end()
    ('', '�')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes, maybe none.

        >>> Tokenizer.of_bytes().stream().feed(65)
        'A'
        """
        return self._decoder.decode(self._tokenizer._bytes(int(token)))

    def end(self) -> str:
        """What was held back: empty, or U+FFFD where the last character never came to its end.

        >>> Tokenizer.of_bytes().stream().end()
        ''
        """
        return self._decoder.decode(b"", final=True)


@contextmanager
def threads() -> Iterator[None]:
    """Let `tokenizers` use all cores inside; after it, forks are safe and silent. The user's own setting goes first.

    >>> with threads():
    ...     os.environ["TOKENIZERS_PARALLELISM"] in ("true", "false")
    True
    """
    name, here = "TOKENIZERS_PARALLELISM", os.getpid()
    if name in os.environ and not _threads_of:
        yield
        return
    forked = bool(_threads_of) and here not in _threads_of
    if not forked:
        _threads_of.add(here)
        os.environ[name] = "true"
    try:
        yield
    finally:
        # Not unset: forked workers of a data loader would warn, and one that encodes would hang.
        os.environ[name] = "false"


def _spelled(token: bytes) -> str:
    return "".join(_SPELLED[byte] for byte in token)


def _definition(tokens: tuple[bytes, ...], merges: tuple[tuple[bytes, bytes], ...]) -> dict[str, Any]:
    """All of a tokenizer as `tokenizers` writes it: the order of the keys is part of hashes."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    without = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    never = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    vocab = {_spelled(token): place for place, token in enumerate(tokens)}
    joined = [[_spelled(left), _spelled(right)] for left, right in merges]
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None},
        **{"pre_tokenizer": level, "post_processor": None, "decoder": level | {"add_prefix_space": True}},
        "model": {"type": "BPE", **without, **never, "vocab": vocab, "merges": joined},
    }


def _parsed(definition: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a definition defines, if it is one that `_definition` could have given."""
    model = definition["model"]
    tokens = tuple(map(_unspelled, model["vocab"]))
    merges = tuple((_unspelled(left), _unspelled(right)) for left, right in model["merges"])
    single = Tokenizer.of_bytes().tokens
    if tokens[:256] != single or set(tokens[256:]) != {left + right for left, right in merges}:
        raise ValueError("its tokens are not the 256 bytes and the results of its merges")
    if not {part for pair in merges for part in pair} <= set(tokens):
        raise ValueError("its merges join unknown tokens")
    if definition != _definition(tokens, merges):
        raise ValueError("its settings are not those of a byte-level BPE")
    return Tokenizer(tokens, merges)


def _unspelled(spelling: str) -> bytes:
    return bytes(_BYTE[letter] for letter in spelling)
