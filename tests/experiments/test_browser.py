"""The page as a browser shows it: on a desk and on a telephone, by day and by night, with the network cut."""

import json
import re
import shutil
import subprocess

import pytest
import synthetic

from joformer.experiments import report, results
from joformer.experiments.report.template import POLICY

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium to look with")

ASK = """<script>addEventListener("load", () => parent.postMessage(JSON.stringify({
    inner: innerWidth, across: document.documentElement.scrollWidth, body: document.body.scrollWidth,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    out: [...document.querySelectorAll("svg text")].filter(text => {
        const letters = text.getBoundingClientRect(), plot = text.closest("svg").getBoundingClientRect()
        return letters.left < plot.left - 1 || letters.right > plot.right + 1
    }).map(text => text.textContent),
    scrolled: [...document.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth).length
}), "*"))</script>"""
# A window has a least width, a frame in it has none.
AROUND = """<!doctype html><title></title><iframe style="width:{width}px;height:900px;border:0"></iframe>
<script>onmessage = told => document.title = told.data; document.querySelector("iframe").src = "{name}"</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    _, cells = synthetic.wikipedia()
    synthetic.write(folder, synthetic.everything(), missing=[cells[3]["cell"]])
    synthetic.train_run(folder / "a-rather-long-name-of-a-folder-which-somebody-has-chosen" / "run")
    analysed = report.analysed(results.gather([folder, *folder.glob("a-*/run")]))
    (folder / "report.html").write_text(report.html(analysed), encoding="utf-8")
    return folder / "report.html"


def browse(page, width, height, *words):
    profile = page.parent / f"profile-{page.stem}-{width}"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-extensions"]
    command += ["--disable-background-networking", f"--window-size={width},{height}", f"--user-data-dir={profile}"]
    done = subprocess.run([*command, *words, page.as_uri()], capture_output=True, timeout=60, check=False)
    return done.stdout.decode(errors="replace")


def asked(page, width, name, extra=""):
    """What a script finds in the page; in a copy, as the page itself lets no script run."""
    text = page.read_text(encoding="utf-8")
    assert POLICY in text
    copy, around = page.with_name(f"{name}-copy.html"), page.with_name(f"{name}.html")
    copy.write_text(text.replace(POLICY, "").replace("</body>", extra + ASK + "</body>"), encoding="utf-8")
    around.write_text(AROUND.format(width=width, name=copy.name), encoding="utf-8")
    told = browse(around, 800, 900, "--dump-dom", "--virtual-time-budget=3000")
    found = re.search(r"<title>(\{.*?\})</title>", told)
    assert found, "the script did not run"
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


def test_nothing_goes_sideways_on_a_telephone_and_nothing_is_loaded(page):
    found = asked(page, 360, "telephone")
    assert found["inner"] == 360
    assert found["across"] == found["body"] == 360
    assert found["out"] == []
    assert found["scrolled"] > 0  # tables are wider, and scroll within themselves
    assert found["loaded"] == []


def test_the_look_would_see_it(page):
    wide = '<p style="width:500px">x</p><img src="http://127.0.0.1:9/x.png">'
    found = asked(page, 360, "wrong", wide)
    assert found["across"] > 360
    assert found["loaded"] == ["http://127.0.0.1:9/x.png"]


@pytest.mark.parametrize("width", [1280, 360])
def test_by_day_and_by_night(page, width):
    import numpy as np
    from PIL import Image

    seen = {}
    for scheme, number in (("dark", 0), ("light", 1)):
        shot = page.with_name(f"{width}-{scheme}.png")
        browse(page, width, 1800, f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={number}")
        with Image.open(shot) as image:
            assert image.size == (width, 1800)
            seen[scheme] = np.asarray(image.convert("L"), dtype=float)
    dark, light = seen["dark"], seen["light"]
    # Most is paper, and there is ink from top to bottom.
    assert np.median(dark) < 50
    assert np.median(light) > 235
    for pixels in (dark, light):
        inked = (np.abs(pixels - np.median(pixels)) > 60).any(axis=1)
        assert 0.2 < inked.mean() < 0.9
        assert all(part.any() for part in np.array_split(inked, 6))
    # What is written by day is written by night.
    ink = [(np.abs(pixels - np.median(pixels)) > 60) for pixels in (dark, light)]
    assert (ink[0] & ink[1]).sum() > 0.6 * max(ink[0].sum(), ink[1].sum())
