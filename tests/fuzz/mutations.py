"""Files that were good, changed a little: bytes cut, doubled or overwritten, numbers made absurd, JSON made odd."""

import copy
import json
import math
import struct

from hypothesis import strategies as st

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**62, 2**63 - 1, 2**64 - 1]
ODD = [
    *(None, True, -1, 0, 1, 2, 65, 10**4, 10**9, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, math.inf, math.nan),
    *("", "x", "../x", "/etc/passwd", "a\x1b[2J\nb", "\ud800", "\0", "9" * 5000, [], [[]], {}, {"": None}, ["x"] * 50),
]


def _changed(data: bytes, how: str, at: float, length: int, number: int) -> bytes:
    place = int(at * len(data))
    if how == "cut":
        return data[:place]
    if how == "drop":
        return data[:place] + data[place + length :]
    if how == "double":
        return data[: place + length] + data[place:]
    if how == "flip":
        return data[:place] + bytes(byte ^ (1 << number % 8) for byte in data[place : place + 1]) + data[place + 1 :]
    if how == "fill":
        return data[:place] + bytes([number % 256]) * length + data[place + length :]
    width = {"u8": "B", "u16": "<H", "u32": "<I", "u64": "<Q", "b16": ">H", "b32": ">I", "b64": ">Q"}[how]
    packed = struct.pack(width, number % 256 ** struct.calcsize(width))
    return data[:place] + packed + data[place + len(packed) :]


def changed(seed: bytes, most: int = 4):
    """The seed with one to `most` changes; early bytes, where headers are, are changed more often."""
    place = st.one_of(st.floats(0, 1), st.floats(0, min(1, 64 / max(len(seed), 1))))
    kinds = ["cut", "drop", "double", "flip", "fill", "u8", "u16", "u32", "u64", "b16", "b32", "b64"]
    change = st.tuples(st.sampled_from(kinds), place, st.integers(1, 64), st.sampled_from(NUMBERS))

    def apply(changes):
        data = seed
        for how, at, length, number in changes:
            data = _changed(data, how, at, length, number)
        return data

    return st.lists(change, min_size=1, max_size=most).map(apply)


def _places(content, path=()):
    yield path
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _places(value, (*path, key))
    elif isinstance(content, list):
        for number, value in enumerate(content[:4]):
            yield from _places(value, (*path, number))


def _replaced(content, path, value, gone):
    content = copy.deepcopy(content)
    if not path:
        return value
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


def changed_json(seed):
    """Bytes of a file that held this JSON: a value replaced by an odd one or left out, or any bytes changed."""
    plain = json.dumps(seed).encode()
    odd = st.tuples(st.sampled_from(list(_places(seed))), st.sampled_from(ODD), st.booleans())
    made = odd.map(lambda one: json.dumps(_replaced(seed, *one)).encode())
    inside = plain[:-1] + b', "x": ' + b"[" * 3000 + b"]" * 3000 + b"}"
    deep = st.sampled_from([b"[" * 20_000, b'{"a":' * 5000, inside])
    return st.one_of(made, made, made, changed(plain), deep)
