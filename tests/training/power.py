"""A disk whose power may fail: what it holds is what was synchronised, and nothing else is promised.

    with Disk(folder) as disk: …            # every os.fsync within is recorded
    for moment, files in disk.moments: …    # what a power failure there may leave: {path: content, None for a folder}
    disk.last["strict"]                     # … and what one after the end

A file's content is that of its last fsync. Its name is there since the fsync of its folder (`strict`), or at once, as
where a journal wrote it (`early`); what was added since the last fsync is missing, or zeros where the length came to
the disk before the data (`zeros`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

Files = dict[str, bytes | None]


class Disk:
    """See the module."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[tuple[str, Files]] = []
        self.last: dict[str, Files] = {}
        self._seen: set[int] = set()
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}  # open, so that no number of a file is given to another

    def __enter__(self) -> Disk:
        self._fsync = os.fsync
        os.fsync = self._synchronised
        self._note_folder(self.root)
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync = self._fsync
        self._record("after the end")
        for handle in self._held.values():
            os.close(handle)

    def _synchronised(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        inside = path == self.root or self.root in path.parents
        if inside:
            self._record(f"before fsync {len(self.moments)} of {path.relative_to(self.root)}")
        self._fsync(handle)
        if inside and stat.S_ISDIR(os.fstat(handle).st_mode):
            self._note_folder(path)
        elif inside:
            number = self._hold(path)
            self._contents[number] = path.read_bytes()
        if inside:
            self._record(f"after fsync {len(self.moments)} of {path.relative_to(self.root)}")

    def _hold(self, path: Path) -> int:
        number = path.stat().st_ino
        if number not in self._held:
            self._held[number] = os.open(path, os.O_RDONLY)
        return number

    def _note_folder(self, path: Path) -> None:
        self._names[self._hold(path)] = {one.name: self._hold(one) for one in path.iterdir()}

    def _record(self, moment: str) -> None:
        for kind in ("strict", "early", "zeros"):
            files = dict(self._strict() if kind == "strict" else self._early(zeros=kind == "zeros"))
            self.last[kind] = files
            digest = hash(frozenset(files.items()))
            if digest not in self._seen:
                self._seen.add(digest)
                self.moments.append((f"{kind}, {moment}", files))

    def _strict(self) -> Iterator[tuple[str, bytes | None]]:
        def below(number: int, prefix: str) -> Iterator[tuple[str, bytes | None]]:
            for name, inner in self._names.get(number, {}).items():
                if stat.S_ISDIR(os.fstat(self._held[inner]).st_mode):
                    yield f"{prefix}{name}", None
                    yield from below(inner, f"{prefix}{name}/")
                else:
                    yield f"{prefix}{name}", self._contents.get(inner, b"")

        yield from below(self.root.stat().st_ino, "")

    def _early(self, zeros: bool) -> Iterator[tuple[str, bytes | None]]:
        for path in sorted(self.root.rglob("*")):
            if path.is_dir():
                yield str(path.relative_to(self.root)), None
            else:
                info = path.stat()
                content = self._contents.get(info.st_ino, b"")[: info.st_size]
                more = info.st_size - len(content) if zeros else 0
                yield str(path.relative_to(self.root)), content + bytes(more)


def put(files: Files, root: Path) -> None:
    """Write such files to a folder."""
    root.mkdir()
    for name, content in files.items():
        if content is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
