"""The pictures: labelled and captioned, of the right numbers, written whole and the same every time."""

import re
import sys
import xml.etree.ElementTree as ET
from functools import partial
from itertools import combinations

import pytest
import torch

pytest.importorskip("matplotlib")

from joformer import CumulativeFrames, DenseFrames, FixedFrames
from joformer.algebra import Generators, Orthogonal, Torus, grid_from_potential, holonomy
from joformer.frequencies import per_axis
from joformer.verify import figures
from joformer.verify.figures._sheet import ROUNDING, STYLE

SWAP, FLIP = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
FIGURES = {
    "path_spread": partial(figures.path_spread_figure, size=4),
    "holonomy": figures.holonomy_figure,
    "displacement_kernel": partial(figures.displacement_kernel_figure, planes=8),
    "angle_fields": figures.angle_fields_figure,
    "order_awareness": figures.order_awareness_figure,
}


@pytest.fixture(scope="module")
def drawn():
    return {name: make() for name, make in FIGURES.items()}


def text_of(figure, part):
    return next(t.get_text() for t in figure.texts if t.get_gid() == part).replace("\n", " ")


def panel(figure, start):
    return next(axes for axes in figure.axes if axes.get_title().startswith(start))


def image(axes):
    return torch.tensor(axes.images[0].get_array().tolist(), dtype=torch.float64)


def line(axes, label):
    return next(found for found in axes.lines if found.get_label().startswith(label)).get_ydata()


@pytest.mark.parametrize("name", FIGURES)
class TestEveryFigure:
    def test_labels_caption_and_title(self, drawn, name):
        figure = drawn[name]
        for axes in figure.axes:
            bar = axes.get_label() == "<colorbar>"
            assert axes.get_ylabel() or (bar and axes.get_xlabel())
            assert axes.get_xlabel() or bar
        assert "docs/claims.md row" in text_of(figure, "caption")
        assert "paper, “" in text_of(figure, "caption")
        assert len(text_of(figure, "title")) > 20

    def test_nothing_leaves_the_sheet_and_no_text_meets_the_caption(self, drawn, name):
        figure = drawn[name]
        figure.canvas.draw()
        width, height = figure.bbox.width, figure.bbox.height
        words = {t.get_gid(): t.get_window_extent() for t in figure.texts}
        assert words["caption"].y0 >= 0
        for box in words.values():
            assert box.x1 <= width
            assert box.y1 <= height
        boxes = [axes.get_tightbbox().padded(-1) for axes in figure.axes]
        for box in boxes:
            assert box.x0 >= 0
            assert box.x1 <= width
            assert box.y0 >= words["caption"].y1
            assert box.y1 <= words["title"].y0
        assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))

    def test_text_is_at_least_eight_points(self, drawn, name):
        import matplotlib.text

        sizes = [t.get_fontsize() for t in drawn[name].findobj(matplotlib.text.Text) if t.get_text()]
        assert min(sizes) >= 8


def test_path_spread_is_rounding_when_flat_and_large_when_curved(drawn):
    figure = drawn["path_spread"]
    flat, curved = image(panel(figure, "flat")), image(panel(figure, "curved"))
    assert flat.abs().max() < 1e-13
    assert curved[1:, 1:].min() > 0.05
    assert curved.max() > 0.1
    assert curved[0].max() == curved[:, 0].max() == 0
    side = panel(figure, "along the diagonal")
    curve = [line(side, name) for name in ("flat", "nearly flat", "curved")]
    assert max(curve[0]) < 1e-13
    assert min(curve[1]) > 1e-4
    assert all(near < far for near, far in zip(curve[1], curve[2]))
    torch.testing.assert_close(torch.tensor(curve[2]), curved.diagonal()[1:])


def test_path_spread_draws_the_generators_given():
    curved = Generators.orthogonal(torch.stack([SWAP, FLIP]))
    flat = Generators.torus(torch.rand(2, 3))
    figure = figures.path_spread_figure(flat, curved, size=2)
    assert image(panel(figure, "curved"))[1, 1] == pytest.approx(8**0.5, abs=1e-6)


def test_holonomy_turns_by_what_the_loop_encloses(drawn):
    figure = drawn["holonomy"]
    titles = [axes.get_title() for axes in figure.axes[:3]]
    assert titles[0].endswith("returns as it left (0°)")
    assert all("returns rotated by" in title for title in titles[1:])
    side = figure.axes[3]
    assert max(line(side, "flat")) < 1e-9
    assert min(line(side, "curved")) > 1
    measured, summed = line(side, "angles that differ"), line(side, "predicted")
    torch.testing.assert_close(torch.tensor(measured), torch.tensor(summed))
    assert max(measured) > 5


@pytest.mark.parametrize("sign", [1, -1])
def test_holonomy_of_one_edge(sign):
    down, across = torch.zeros(2, 3, 1), torch.zeros(3, 2, 1)
    across[0, 0] = sign * torch.pi / 2  # the first edge of every loop
    figure = figures.holonomy_figure(steps=(down, across), side=1)
    axes = figure.axes[1]
    assert axes.get_title().endswith("rotated by 90°")
    assert [t.get_text() for t in axes.texts] == [f"{'+' if sign > 0 else '−'}90°"]
    _, back, _ = axes.collections
    rotated = torch.tensor([back.U[0], back.V[0]], dtype=torch.float32)
    expected = Torus(1).act(holonomy((down, across), [1, 0, ~1, ~0], group=Torus(1)), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(rotated, expected, atol=1e-6, rtol=0)
    assert rotated[1] == pytest.approx(sign, abs=1e-6)


def test_holonomy_arrow_after_the_loop_is_the_library_s():
    skew = torch.tensor(
        [[[0.0, -0.4, 0.1], [0.4, 0.0, 0.2], [-0.1, -0.2, 0.0]], [[0, 0.3, 0.5], [-0.3, 0, 0], [-0.5, 0, 0]]]
    )
    curved = Generators.orthogonal(torch.linalg.matrix_exp(skew.double()))
    axes = figures.holonomy_figure(curved=curved, side=2).axes[2]
    way, back, away = axes.collections
    loop = [1, 1, 0, 0, ~1, ~1, ~0, ~0]
    end = Orthogonal(3).act(holonomy(curved, loop), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor([back.U[0], back.V[0]]), end[:2])
    assert (away.U[0], away.V[0]) == (1, 0)
    assert len(way.U) == len(loop) - 1
    first = curved.steps[1][:2, 0]  # across first: one column step
    torch.testing.assert_close(torch.tensor([way.U[0], way.V[0]]), first)


def test_a_potential_has_no_holonomy():
    figure = figures.holonomy_figure(steps=grid_from_potential(torch.randn(5, 5, 2).double()), side=2)
    assert figure.axes[1].get_title().endswith("returns as it left (0°)")


def test_kernel_is_one_at_zero_and_on_the_blind_diagonal(drawn):
    figure = drawn["displacement_kernel"]
    lines = panel(figure, "")  # the one without a title
    for name in ("geometric, base 10000", "geometric, base 100", "harmonics"):
        assert line(lines, name)[0] == pytest.approx(1)
    harmonics = line(lines, "harmonics")
    assert harmonics[16] == pytest.approx(1)
    assert max(harmonics[1:16]) < 0.1
    for name, blind in (("axial", False), ("combined", False), ("diagonal", True)):
        kernel = image(panel(figure, name))
        assert kernel[12, 12] == pytest.approx(1)
        assert bool((kernel.flip(1).diagonal() > 1 - 1e-9).all()) == blind
        assert int((kernel > 1 - 1e-9).sum()) == (25 if blind else 1)
    assert "24 of these" in panel(figure, "diagonal").get_title()


def test_kernel_rows_are_rows():
    rows_only = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    kernel = image(figures.displacement_kernel_figure({"rows": rows_only}, reach=3).axes[0])
    offsets = torch.arange(-3, 4, dtype=torch.float64)
    torch.testing.assert_close(kernel, offsets.cos()[:, None].expand(7, 7))


def test_kernel_is_the_mean_cosine():
    angles, at = torch.rand(2, 5, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    torch.testing.assert_close(figures.displacement_kernel(angles, at), (at @ angles).cos().mean(-1))


def test_angle_fields_show_what_each_frame_sees(drawn):
    figure = drawn["angle_fields"]
    omega = per_axis(4, 2, "combined", 100.0)[:, 1]
    row, column = torch.meshgrid(*(torch.arange(16, dtype=torch.float64),) * 2, indexing="ij")
    fixed = image(panel(figure, "fixed"))
    torch.testing.assert_close(fixed, (omega[0] * row + omega[1] * column).cos(), atol=1e-6, rtol=0)
    learned = image(panel(figure, "learned − fixed"))
    torch.testing.assert_close(learned[5, 7] + learned[0, 0], learned[5, 0] + learned[0, 7], atol=1e-5, rtol=0)
    assert learned.abs().max() > 0.1
    picture = image(panel(figure, "the image"))
    inked = picture.unfold(0, 4, 4).unfold(1, 4, 4).amax((-1, -2)) > 0
    projected, cumulative = (
        image(panel(figure, f"{name} − fixed")).abs() > 1e-5 for name in ("projected", "cumulative")
    )
    assert torch.equal(projected, inked)
    assert torch.equal(cumulative, inked.cumsum(1) - inked.long() > 0)  # from the cell after the first inked one on


def test_angle_fields_of_frames_given():
    module = FixedFrames(4, axes=2)
    figure = figures.angle_fields_figure(torch.rand(6, 9), {"mine": module}, patch=3, plane=1)
    expected = module.frequencies()[1, 0] * torch.arange(3, dtype=torch.float64)
    torch.testing.assert_close(image(figure.axes[0]), expected.cos().expand(2, 3))


def columns(figure):
    found = {}
    for marks in figure.axes[0].lines:
        if marks.get_marker() in "o^":
            for x, y in zip(marks.get_xdata(), marks.get_ydata()):
                found.setdefault(round(x), []).append((y, marks.get_marker(), marks.get_markerfacecolor()))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_order_awareness_has_the_known_blind_spots(seed):
    found = columns(figures.order_awareness_figure(seed=seed))
    counts = {n: (sum(y < ROUNDING for y, *_ in marks), len(marks)) for n, marks in found.items()}
    # complex, real (the reversal), q = 3 (one swap), q = m (three turns), q = 5; then all shifts
    assert counts == {0: (0, 23), 1: (1, 23), 2: (1, 23), 3: (3, 23), 4: (0, 23), 5: (11, 11)}
    assert [shape for y, shape, _ in found[1] if y < ROUNDING] == ["^"]
    assert all((colour == "white") == (y < ROUNDING) for marks in found.values() for y, _, colour in marks)


class TestDraw:
    def test_writes_both_formats_the_same_each_time(self, tmp_path, monkeypatch):
        monkeypatch.setattr(figures, "path_spread_figure", partial(figures.path_spread_figure, size=4))
        monkeypatch.setattr(figures, "displacement_kernel_figure", FIGURES["displacement_kernel"])
        first, again = (figures.draw(tmp_path / name / "deep") for name in "ab")
        assert [path.suffix for path in first] == [".svg", ".png"] * 5
        assert sorted(p.name for p in (tmp_path / "a" / "deep").iterdir()) == sorted(p.name for p in first)
        for one, two in zip(first, again):
            assert one.read_bytes() == two.read_bytes()
            if one.suffix == ".svg":
                text = one.read_text()
                assert ET.fromstring(text).tag.endswith("svg")
                assert set(re.findall(r"url\(#([^)]*)\)", text)) == set(re.findall(r'<clipPath id="([^"]*)"', text))
            else:
                assert one.read_bytes().startswith(b"\x89PNG")
                assert one.stat().st_size > 10_000

    def test_leaves_the_user_s_settings_alone(self, tmp_path):
        import matplotlib

        before = {key: matplotlib.rcParams[key] for key in STYLE}
        figures.holonomy_figure(side=1)
        assert {key: matplotlib.rcParams[key] for key in STYLE} == before
        assert "matplotlib.pyplot" not in sys.modules

    def test_seed_changes_what_is_drawn_at_random(self):
        one, two = (figures.holonomy_figure(side=1, seed=seed).axes[1].get_title() for seed in (0, 1))
        assert one != two


@pytest.mark.refused
class TestRefused:
    def refuse(self, call, message):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)

    def test_bad_directory(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        self.refuse(lambda: figures.draw(tmp_path / "file"), "is a file: give a directory")
        self.refuse(lambda: figures.draw(tmp_path / "file" / "under"), "cannot write into .* give a directory")

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.replace", full)
        self.refuse(lambda: figures.draw(tmp_path / "out"), "No space left on device")
        assert list((tmp_path / "out").iterdir()) == []

    def test_bad_formats(self, tmp_path):
        self.refuse(lambda: figures.draw(tmp_path, formats=["gif"]), "choose from svg, png")
        self.refuse(lambda: figures.draw(tmp_path, formats=[]), "choose from svg, png")

    def test_no_matplotlib(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        self.refuse(
            lambda: figures.holonomy_figure(side=1), r"figures need matplotlib: pip install 'joformer\[train\]'"
        )

    def test_bad_arguments(self):
        flat, line = Generators.torus(torch.rand(2, 1)), Generators.torus(torch.rand(1, 1))
        curved = Generators.orthogonal(torch.stack([SWAP, FLIP]))
        spread, loop, kernel = figures.path_spread_figure, figures.holonomy_figure, figures.displacement_kernel_figure
        fields, order = figures.angle_fields_figure, figures.order_awareness_figure
        self.refuse(lambda: spread(curved), "do not commute")
        self.refuse(lambda: spread(curved=flat), "curved generators commute")
        self.refuse(lambda: spread(line), "1 axes")
        self.refuse(lambda: spread(nearly=line), "1 axes")
        self.refuse(lambda: spread(size=1), "size 1")
        self.refuse(lambda: loop(flat=curved), "do not commute")
        self.refuse(lambda: loop(side=0), "side 0")
        self.refuse(lambda: loop(steps=(torch.zeros(2, 3, 1), torch.zeros(3, 2, 1)), side=2), "5 rows and columns")
        self.refuse(lambda: loop(steps=(torch.zeros(3), torch.zeros(3, 2, 1)), side=1), "3 rows and columns")
        self.refuse(lambda: kernel({"mine": torch.rand(3, 4)}), r"\(3, 4\)")
        self.refuse(lambda: kernel({}), "no angles")
        self.refuse(lambda: kernel(planes=3), "even number")
        self.refuse(lambda: kernel(reach=0), "reach must be 1 or more, got 0")
        self.refuse(lambda: fields(torch.rand(3)), r"\(3,\)")
        self.refuse(lambda: fields(torch.rand(3, 3), patch=4), r"\(3, 3\)")
        self.refuse(lambda: fields(frames={}), "no frames")
        self.refuse(lambda: fields(frames={"mine": FixedFrames(8)}), "1 axes")
        self.refuse(lambda: fields(frames={"mine": FixedFrames(8, axes=2)}, plane=4), "plane 4")
        self.refuse(lambda: fields(frames={"mine": DenseFrames(8)}), "curved")
        self.refuse(lambda: fields(frames={"mine": CumulativeFrames(4, 8, heads=1, axes=2)}), "dim=4")
        self.refuse(lambda: order(window=2), "window 2")
        self.refuse(lambda: order(window=9), "window 9")
