"""Where what is made of data is kept.

What is made once (tokens, spectrograms) is kept in a cache folder under the hash of all it was made from. It appears
there whole, by one rename, with a list of its files' checksums: a process killed in the middle leaves nothing that is
later believed, two that build the same wait for one another, and what was damaged since is built again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from joformer._io import Lock, cache_folder, new_folder, read_json, sweep
from joformer.training.data.files import Place, content_hash

MANIFEST = "manifest.json"


def cached(key: str, build: Callable[[Path], object], *, cache: Place | None = None) -> Path:
    """The folder `key` in the cache, filled by `build(folder)` unless it is there already and undamaged.

    `key` names what is built and holds a `content_hash` of all it is built from. `build` writes plain files into the
    empty folder it is given and no folders.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as cache:
    ...     made = cached("text-12ab", lambda folder: (folder / "a.bin").write_bytes(b"abc"), cache=cache)
    ...     (made / "a.bin").read_bytes()
    b'abc'
    """
    folder = cache_folder(cache)
    final = folder / key
    if is_whole(final):
        return final
    with Lock(folder, f".{key}.lock", waiting="another process prepares the same data: waiting for it"):
        if is_whole(final):
            return final
        sweep(folder, key)
        try:
            with new_folder(final, f"cannot write into {folder}", "make room or set JOFORMER_CACHE") as partial:
                build(partial)
                _seal(partial)
                if final.exists() and not is_whole(final):
                    shutil.rmtree(final)
        except ValueError:
            if not is_whole(final):  # else another process, where locks do not reach, was first
                raise
    return final


def cached_tensors(
    key: str, build: Callable[[Path], tuple[dict[str, Tensor], Any]], *, cache: Place | None = None
) -> tuple[dict[str, Tensor], Any]:
    """The tensors, and what is said of them as JSON, that `build(folder)` gives, mapped from the cache.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as cache:
    ...     cached_tensors("sums-12ab", lambda _: ({"sum": torch.ones(1)}, ["of one"]), cache=cache)
    ({'sum': tensor([1.])}, ['of one'])
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    def write(folder: Path) -> None:
        tensors, about = build(folder)
        save_file(tensors, folder / "data.safetensors", {"about": json.dumps(about)})

    with safe_open(cached(key, write, cache=cache) / "data.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118


def is_whole(folder: Path) -> bool:
    """Whether a folder of the cache holds exactly what was built: every file listed, with its size and checksum.

    >>> is_whole(Path("nowhere"))
    False
    """
    try:
        listed = read_json(folder / MANIFEST)
        if not listed or {*listed, MANIFEST} != {path.name for path in folder.iterdir()}:
            return False
        # Sizes first: they cost nothing and find what was cut short.
        sized = all((folder / name).stat().st_size == size for name, (size, _) in listed.items())
        return sized and all(content_hash(folder / name) == digest for name, (_, digest) in listed.items())
    except (OSError, ValueError, TypeError):
        return False


def _seal(folder: Path) -> None:
    listed = {path.name: (path.stat().st_size, content_hash(path)) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
