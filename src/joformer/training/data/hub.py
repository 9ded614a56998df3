"""Data sets of the hub, through `datasets`.

"mnist"  "wikipedia"  …  "hub:owner/name"  "hub:owner/name:configuration"
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from joformer._io import one_line

HUB: dict[str, tuple[str, str | None]] = {
    "mnist": ("ylecun/mnist", None),
    "cifar100": ("uoft-cs/cifar100", None),
    "imagenet": ("ILSVRC/imagenet-1k", None),
    "wikipedia": ("wikimedia/wikipedia", "20231101.en"),
    "openwebtext": ("Skylion007/openwebtext", None),
}


def hub(name: str) -> Any:
    """A data set of the hub through `datasets`: one of `HUB`, or "hub:owner/name" or "hub:owner/name:configuration".

    Gives a `datasets.DatasetDict`. What was fetched before is found without a network; where neither helps, one line
    says so.

    >>> hub("nothing")
    Traceback (most recent call last):
    ValueError: 'nothing' is not a data set: use cifar100, imagenet, mnist, openwebtext, wikipedia or hub:owner/name
    """
    repository, configuration = hub_name(name)
    import datasets

    try:
        with _without_waiting():
            return datasets.load_dataset(repository, configuration)
    except Exception as error:  # the client's errors have no common base: those of the network are not OSError
        said = f"cannot load {repository} from the hub: {one_line(error)}"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            said = f"cannot store {repository}: {one_line(error)}; make room or set HF_HOME to another folder"
        elif isinstance(error, ConnectionError):
            said = f"cannot reach the hub for {repository}: no network; give a folder of parquet files instead"
        raise ValueError(said) from None


def hub_name(name: str) -> tuple[str, str | None]:
    """The repository and the configuration that a name stands for; `is_hub(name)` says whether there is one.

    >>> hub_name("wikipedia")
    ('wikimedia/wikipedia', '20231101.en')
    """
    if name in HUB:
        return HUB[name]
    if not is_hub(name):
        raise ValueError(f"{name!r} is not a data set: use {', '.join(sorted(HUB))} or hub:owner/name")
    repository, _, configuration = name.removeprefix("hub:").partition(":")
    return repository, configuration or None


def is_hub(source: object) -> bool:
    """Whether the source is a name for the hub rather than a path.

    >>> is_hub("mnist"), is_hub("hub:owner/name"), is_hub("./mnist")
    (True, True, False)
    """
    return isinstance(source, str) and (source in HUB or (source.startswith("hub:") and len(source) > 4))


def hub_identity(dataset: Any) -> str:
    """What tells one version of a hub's `Dataset` from another, without reading it: goes into `content_hash`.

    >>> from datasets import Dataset
    >>> hub_identity(Dataset.from_dict({"text": ["a"]})) == hub_identity(Dataset.from_dict({"text": ["b"]}))
    False
    """
    fetched = dataset.info.download_checksums or {}
    return json.dumps([dataset.num_rows, str(dataset.split), sorted(map(str, fetched.items())) or dataset._fingerprint])


def hub_folders() -> tuple[str, ...]:
    """Where what was fetched from the hub lies: files that a row of a hub's data set may name.

    >>> len(hub_folders())
    2
    """
    import datasets
    from huggingface_hub import constants

    return tuple(map(os.path.realpath, (constants.HF_HUB_CACHE, datasets.config.HF_DATASETS_CACHE)))


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Where the hub's name does not resolve, its client would retry for half a minute, and print all the while."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    # Behind a proxy names resolve elsewhere.
    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    try:
        reached = proxied or bool(socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443))
    except OSError:
        reached = False
    if not reached:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
