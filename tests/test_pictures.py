"""The pictures of the pages are those of their scripts, small and whole; the page about choosing runs and quotes."""

import re
from importlib import import_module
from xml.etree import ElementTree

import pytest

from test_docs import ROOT

FIGURES = ROOT / "docs" / "figures"
PAGE = ROOT / "docs" / "choosing.md"
STYLED = "prefers-color-scheme:dark"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


@pytest.mark.parametrize("script", ["draw_figures", "draw_choices", "draw_results"])
def test_a_script_draws_what_is_committed(script):
    module = import_module(script)
    from drawing import outdated

    assert outdated(module.PICTURES, getattr(module, "WITHIN", 0.0)) == []


def test_a_number_that_moved_is_seen():
    from drawing import differs

    old = '<line x1="10.0" y1="3.5"/>'
    assert not differs(old, old, 0.0)
    assert differs(old, old.replace("3.5", "3.6"), 0.0)
    assert not differs(old, old.replace("3.5", "3.6"), 0.2)
    assert differs(old, old.replace("3.5", "3.8"), 0.2)
    assert differs(old, old.replace("line", "path"), 0.2)


def test_pictures_are_small_and_fit_a_phone():
    """480 wide with text of 13 or more is 9.7 or more on a phone of 390; words stay inside."""
    drawn = [path for path in FIGURES.glob("*.svg") if STYLED in path.read_text()]
    assert len(drawn) == 18
    for path in drawn:
        root = ElementTree.parse(path).getroot()
        assert path.stat().st_size < 40_000
        assert root.get("width") == "480"
        space = "{http://www.w3.org/2000/svg}"
        assert root.find(f"{space}title").text
        assert root.find(f"{space}desc").text
        for text in root.iter(f"{space}text"):
            size, x, width = float(text.get("font-size")), float(text.get("x")), len(text.text)
            left = {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor"), 0.0)
            wide = width * size * (0.60 if "b" in text.get("class").split() else 0.54)
            assert size >= 13, (path.name, text.text)
            assert x - left * wide > -6, (path.name, text.text)
            assert x + (1 - left) * wide < 486, (path.name, text.text)
        assert "/tmp/" not in path.read_text()


def test_every_block_of_choosing_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, "choosing.md", "exec"), names)
        if "y" in names:
            assert names["y"].shape == (2, 48, 256)


def test_choosing_quotes_results_and_its_sections():
    """Every interval on the page stands on results.md too; every link into it leads to a heading."""
    results = (ROOT / "docs" / "results.md").read_text()
    plain = " ".join(PAGE.read_text().split())
    intervals = set(re.findall(r"\[−?[\d.]+, −?[\d.]+\]", plain))
    assert len(intervals) >= 15
    mirrored = {"[0.08, 0.14]": "[−0.14, −0.08]"}  # "better by" in place of a difference
    for one in intervals:
        assert mirrored.get(one, one) in results, one
    slugs = set()
    for heading in re.findall(r"^#+ (.*)$", results, flags=re.M):
        slugs.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    for slug in re.findall(r"results\.md#([\w-]+)", plain):
        assert slug in slugs, slug


def test_every_kind_of_frames_is_on_the_page():
    import joformer

    kinds = [
        name
        for name in joformer.__all__
        if name.endswith("Frames") and name not in ("FlatFrames", "CurvedFrames", "JointFrames")
    ]
    page = PAGE.read_text() + (FIGURES / "choosing.svg").read_text()
    assert [name for name in kinds if name not in page] == []
    for kernel in FIGURES.glob("kernel-*.svg"):
        assert f"figures/{kernel.name}" in PAGE.read_text()
