"""Runs the notebooks of docs/notebooks and writes their outputs into them.

    python docs/run_notebooks.py            all of them
    python docs/run_notebooks.py --check    exits with 1 if one fails, or a stable output is another

A cell tagged "stable" prints the same on every machine; what the others print is not compared. All share one kernel,
which forgets every name between two: importing torch takes longer than most of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client import KernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent / "notebooks"
NAMES = ("first_steps", "convert_a_model", "read_a_report")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def executed(timeout: int = 300) -> Iterator[tuple[str, Any]]:
    """Each notebook's name, and itself with the outputs of now."""
    with TemporaryDirectory() as folder:
        manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=f"{folder}/ipc", connection_file=f"{folder}/kernel.json"
        )
        manager.start_kernel(
            cwd=str(FOLDER),
            # tqdm asks for ipywidgets, whose bars would not be kept.
            env={**os.environ, "IPYTHONDIR": folder, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:IProgress not"},
            extra_arguments=["--HistoryManager.enabled=False"],
        )
        try:
            for name in NAMES:
                book = read(name)
                book.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
                NotebookClient(book, km=manager, timeout=timeout).execute()
                book.cells.pop(0)
                yield name, tidied(book)
        finally:
            manager.shutdown_kernel(now=True)


def tidied(book: Any) -> Any:
    """Without times, versions and counts that differ from run to run."""
    book.metadata = nbformat.from_dict(METADATA)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    for count, cell in enumerate(cells, start=1):
        cell.metadata.pop("execution", None)
        cell.execution_count = count
        kept: list[Any] = []
        for output in cell.outputs:
            if kept and output.output_type == "stream" and output.name == kept[-1].get("name"):
                kept[-1].text += output.text  # a stream comes in pieces
                continue
            if output.output_type == "execute_result":
                output.execution_count = count
            if "image/png" in output.get("data", {}):
                del output.data["text/plain"]
            kept.append(output)
        cell.outputs = kept
    return book


def printed(book: Any) -> list[str]:
    """What the stable cells print."""
    return ["".join(map(_text, cell.outputs)) for cell in book.cells if "stable" in cell.metadata.get("tags", ())]


def _text(output: Any) -> str:
    return output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")


def main() -> None:
    for name, now in executed():
        if "--check" not in sys.argv:
            nbformat.write(now, FOLDER / f"{name}.ipynb")
        elif printed(now) != printed(read(name)):
            raise SystemExit(f"docs/notebooks/{name}.ipynb prints something else now: python docs/run_notebooks.py")


if __name__ == "__main__":
    main()
