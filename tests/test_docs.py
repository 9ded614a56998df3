"""Code on every page runs as it stands, block after block."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


ELSEWHERE = ("choosing.md", "from-rope.md")  # which have tests of their own
RUN = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```python" in page.read_text()]
RUN = [ROOT / "README.md", *(page for page in RUN if page.name not in ELSEWHERE)]


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in RUN])
def test_every_block_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


WIDE = 84
"""So many characters of code stand beside both columns of the site on a laptop: the rest would be cut off."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_code_fits_its_page(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        assert [line for line in block.splitlines() if len(line) > WIDE] == []


PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]


def test_links_lead_somewhere():
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_path_of_a_machine():
    for page in PAGES:
        assert not re.search(r"(^|[^a-zA-Z.])/(work|root|home|tmp)/", page.read_text())


def test_the_bounds_that_are_promised_are_those_of_the_code():
    from joformer import _io as files
    from joformer import _remote
    from joformer.training.data import audio, documents, streamed, tables
    from joformer.training.data import files as data_files

    page = " ".join((ROOT / "SECURITY.md").read_text().split())
    for said in (
        f"| {data_files.FREE >> 20} MiB and {data_files.RATIO} times the file's size |",
        f"| memory to unpack xz | {data_files.XZ_MEMORY >> 20} MiB |",
        f"| an image | {streamed.PIXELS // 10**6} million pixels |",
        f"| an encoded image, sound or clip, a file | {data_files.EXAMPLE >> 20} MiB |",
        f"| samples per second of a sound | {audio.RATES[0]:,} to {audio.RATES[1]:,} |",
        f"| a file of JSON | {files.JSON >> 20} MiB |",
        f"| a row of CSV, TSV or JSON lines | {tables.LINE >> 20} MiB |",
        f"A batch of {tables.ROWS} (text: {documents.ROWS}) rows",
        f"`{files.LIMITS}=10`",
        f"at most {_remote.FILES >> 20} million files",
    ):
        assert said in page
    # A placeholder, of a domain that cannot exist, and no host of a machine.
    assert re.findall(r"[\w.+-]+@([\w.-]+)", page) == ["joformer.example"]


def test_the_picture_of_the_imports_is_that_of_the_source():
    script = ROOT / "docs" / "draw_imports.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_walks_are_those_of_the_source_and_go_down():
    script = ROOT / "docs" / "draw_walks.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_walk_that_goes_up_is_seen(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import draw_walks

    monkeypatch.setattr(draw_walks, "order", lambda: ["attention", "rotation", "frames"])  # the house upside down
    _, upward = draw_walks.record(draw_walks.one_call())
    assert any(line.startswith("attention/_functional.py: journey_attention calls rotation/") for line in upward)
