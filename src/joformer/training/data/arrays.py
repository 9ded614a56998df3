"""Arrays of NumPy in files of any origin: .npy, and .npz, a zip of them.

Nothing is unpickled, and no header is believed before there are as many bytes as it says.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path
from typing import Any

from joformer._io import one_line, open_file
from joformer.training.data.files import Expansion

KINDS = {"f": "numbers", "i": "numbers", "u": "numbers", "U": "text"}
DIMENSIONS = 8


def read_header(file: Any) -> tuple[tuple[int, ...], bool, Any]:
    """What the header of a .npy file declares: shape, whether columns come first, dtype; the file is then at the data.

    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(2))
    >>> _ = file.seek(0)
    >>> read_header(file)
    ((2, 2), False, dtype('float64'))
    """
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    # Version 3 is version 2 with names of fields in UTF-8, and arrays with fields are not read.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    found: tuple[tuple[int, ...], bool, Any] = read(file)
    return found


def read_array(data: bytes, name: object) -> Any:
    """The array of a .npy file of real numbers or text; `name` is said in errors.

    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(2))
    >>> read_array(file.getvalue(), "a.npy").tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    import numpy as np

    file = io.BytesIO(data)
    try:
        shape, by_columns, dtype = read_header(file)
    except Exception as error:  # numpy parses a header as Python: whatever it says is one line
        raise ValueError(f"{name} is damaged or not a NumPy array ({one_line(error)}): write it again") from None
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects (a pickle), which are never read: save numbers")
    if dtype.kind not in KINDS:
        raise ValueError(f"{name} holds {dtype}, not real numbers or text: save float32")
    rest = len(data) - file.tell()
    if len(shape) > DIMENSIONS or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != rest:
        raise ValueError(f"{name} declares {shape} of {dtype} but has {rest:,} bytes: it is damaged, write it again")
    array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if by_columns else "C")


def holds_pictures(path: Path) -> bool:
    """Whether the (first) array of the file is one of pictures: bytes, with three dimensions or more.

    >>> holds_pictures(Path(__file__))
    False
    """
    with suppress(Exception), ExitStack() as opened:  # whoever reads it reports what is wrong with it
        file: Any = opened.enter_context(open_file(path))
        if path.suffix.lower() == ".npz":
            archive = opened.enter_context(zipfile.ZipFile(file))
            file = opened.enter_context(archive.open(archive.infolist()[0]))
        shape, _, dtype = read_header(file)
        return len(shape) > 2 and dtype == "uint8"
    return False


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a .npz file by name, bounded as packed files are.

    >>> read_arrays(Path(__file__))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...arrays.py is damaged or not an npz file (...): write it again
    """
    found = {}
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            Expansion(path).add(sum(member.file_size for member in members))
            for member in members:
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise zipfile.BadZipFile(f"{member.filename} is packed in a way that NumPy does not use")
                name = member.filename.removesuffix(".npy")
                found[name] = read_array(archive.read(member), f"{path}, array {name!r}")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {one_line(error)}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} is damaged or not an npz file ({one_line(error)}): write it again") from None
    return found
