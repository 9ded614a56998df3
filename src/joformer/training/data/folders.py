"""Examples as files in class folders.

folder/cat/1.png                                    a class is a folder …
folder/train/cat/1.png  folder/test/cat/2.png       … in each split: test, validation, valid or val beside train
folder/7_jackson_0.wav                              clips only: the class stands before the first underscore
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from joformer.training.data.records import TESTS, Files, Kind, pick_test


def open_files(folder: Path, files: list[str], kind: Kind) -> tuple[Files, Files | None, tuple[str, ...]]:
    """Training and test files of a folder of class folders, and the names of the classes."""
    below = _folders(folder)
    splits = {name: folder / name for name in below if name in ("train", *TESTS)}
    if "train" not in splits or len(splits) == 1 < len(below):  # beside other folders alone, "train" is a class
        if splits and len(splits) == len(below):
            raise ValueError(f"{folder} has {', '.join(below)} but no train folder: name the training split train")
        splits = {"train": folder}
    elif odd := [name for name in below if name not in splits]:
        raise ValueError(
            f"{folder / odd[0]} is no split beside train: name it one of {', '.join(TESTS)}, or move it away"
        )
    elif loose := _by_folder(folder, files, kind)[1]:
        raise ValueError(f"{loose[0]} stands beside the train folder: move it into a class folder of a split")

    def labelled(name: str) -> bool:
        return kind.by_name or not _by_folder(splits[name], files, kind)[1]

    test = pick_test(splits, labelled)
    train = _examples(splits["train"], files, kind)
    classes = {name: number for number, name in enumerate(sorted({name for _, name in train}))}
    held = _examples(splits[test], files, kind) if test else []
    for path, name in held:
        if name not in classes:
            raise ValueError(f"{path}: class {name!r} is unknown to {splits['train']}: add examples of it there")
    return _files(train, classes), _files(held, classes) if held else None, tuple(classes)


def _files(examples: list[tuple[str, str]], classes: dict[str, int]) -> Files:
    import numpy as np

    return Files(np.array([os.fsencode(path) for path, _ in examples]), torch.tensor([classes[c] for _, c in examples]))


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _by_folder(folder: Path, files: list[str], kind: Kind) -> tuple[dict[str, list[str]], list[str]]:
    """Of all files, those in each folder right below this one, and those of this kind that stand in it directly."""
    inside: dict[str, list[str]] = {name: [] for name in _folders(folder)}
    loose, root = [], os.path.join(folder, "")
    for file in files:
        if file.startswith(root):
            name, deeper, _ = file[len(root) :].partition(os.sep)
            if deeper:
                inside[name].append(file)
            elif file.lower().endswith(kind.suffixes):
                loose.append(file)
    return inside, loose


def _examples(folder: Path, files: list[str], kind: Kind) -> list[tuple[str, str]]:
    """(path, class) of all files in the class folders of one split; other files beside the class folders may stay."""
    inside, loose = _by_folder(folder, files, kind)
    if loose and (inside or not kind.by_name):
        raise ValueError(
            f"{loose[0]} stands in no class folder: put every {kind.word} into a folder named as its class"
        )
    if not loose and not inside:
        raise ValueError(f"{folder} holds no class folders: put every {kind.word} into a folder named as its class")
    examples = []
    for path in loose:
        name, underscore, _ = Path(path).stem.partition("_")
        if not name or not underscore:
            raise ValueError(
                f"{path} names no class before an underscore: call it class_{Path(path).name}, or use class folders"
            )
        examples.append((path, name))
    for name, members in inside.items():
        odd = next((path for path in members if not path.lower().endswith(kind.suffixes)), None)
        if odd is not None:
            raise ValueError(
                f"{odd} is no {kind.word} file ({', '.join(kind.suffixes)}): move it out of the class folder"
            )
        if not members:
            raise ValueError(f"the class folder {folder / name} holds no {kind.word} files: fill it or remove it")
        examples += [(path, name) for path in members]
    return examples
