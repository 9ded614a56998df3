"""The notebooks run, print what is committed where that is stable, and hold nothing of a machine."""

import re
import subprocess
import sys

from test_docs import ROOT

FOLDER = ROOT / "docs" / "notebooks"
LARGEST = 60_000


def test_they_run_and_print_what_is_committed():
    """In a process of its own: a kernel's sockets and loops would warn in this one."""
    script = ROOT / "docs" / "run_notebooks.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_they_are_committed_with_outputs_that_are_small_and_of_no_machine(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import run_notebooks

    assert sorted(run_notebooks.NAMES) == sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in run_notebooks.NAMES:
        book = run_notebooks.read(name)
        cells = [cell for cell in book.cells if cell.cell_type == "code"]
        assert all(cell.execution_count == place for place, cell in enumerate(cells, start=1))
        outputs = [output for cell in cells for output in cell.outputs]
        assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
        assert all(len(output.get("data", {}).get("image/png", "")) < LARGEST for output in outputs)
        stable = run_notebooks.printed(book)
        assert len(stable) >= 5
        assert all(stable)
        assert not re.search(r"(^|[^a-zA-Z.])/(work|root|home|tmp)/", (FOLDER / f"{name}.ipynb").read_text())


def test_links_lead_somewhere(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import run_notebooks

    for name in run_notebooks.NAMES:
        words = "".join(cell.source for cell in run_notebooks.read(name).cells if cell.cell_type == "markdown")
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", words):
            assert (FOLDER / target).exists(), f"{name} links to {target}"


def test_another_output_is_seen(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import run_notebooks

    book = run_notebooks.read("read_a_report")
    said = run_notebooks.printed(book)
    assert any("inconclusive" in one for one in said)
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = output.text.replace("inconclusive", "better")
    assert run_notebooks.printed(book) != said
