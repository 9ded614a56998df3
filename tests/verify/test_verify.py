"""`joformer verify` agrees with docs/claims.md, and turns red where the library is made wrong."""

import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from joformer import cli, verify
from joformer.algebra import Orthogonal, Torus
from joformer.algebra._groups import Group
from joformer.verify import figures
from joformer.verify._claims import Claim, Draw, Measured, Result, Section, default_dtype, worst
from joformer.verify._page import lines

ROOT = Path(__file__).parents[2]

# The verdicts of docs/claims.md, row by row; U stands for "unsupported" and "implausible".
VERDICTS = "HHHWWCCCHWWC CHHHCWCCCHWWH WCHCHCWCHCHH CWWWWWWWHWC HWWCHWWCWUU HHHCHCCCU".replace(" ", "")
SIZES = {"algebra": 12, "attention": 13, "order": 12, "transforms": 11, "tables": 11, "remarks": 9}


def red(*rows):
    """Which of these rows (all, when none is named) disagree with their verdict."""
    return {result.claim.row for result in verify.run(rows, trials=1) if not result.ok}


@pytest.fixture
def joformer(monkeypatch, capsys):
    """The command in this process: words in; exit code, output and errors out."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["joformer", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (end.value.code, *capsys.readouterr())

    return run


def test_every_row_has_one_check_with_its_verdict():
    assert [claim.row for claim in verify.CLAIMS] == list(range(1, 69))
    assert "".join(claim.verdict for claim in verify.CLAIMS) == VERDICTS
    assert {name: len(claims) for name, claims in verify.SECTIONS.items()} == SIZES


def test_every_claim_says_what_is_printed_and_what_is_true():
    for claim in verify.CLAIMS:
        assert all((claim.label, claim.printed, claim.statement)), claim.row
        assert (claim.statement.startswith("as printed")) == (claim.verdict == "H"), claim.row


@pytest.mark.parametrize(("seed", "trials"), [(0, 2), (10**30, 1)])
def test_all_claims_are_as_they_should_be(seed, trials):
    results = verify.run(seed=seed, trials=trials)
    assert [r.claim.row for r in results if not r.ok] == []
    for r in results:
        assert math.isfinite(r.residual)
        assert r.gap is not None or r.claim.verdict == "H", f"row {r.claim.row} shows nothing that fails"
        assert (r.gap is None) == (not r.claim.gap), f"row {r.claim.row} does not say what its gap is"


def test_the_same_seed_gives_the_same_numbers():
    a, b, c = (verify.run(["algebra", "33", "48"], seed=s, trials=1) for s in (3, 3, 4))
    assert [(r.residual, r.gap) for r in a] == [(r.residual, r.gap) for r in b]
    assert [(r.residual, r.gap) for r in a] != [(r.residual, r.gap) for r in c]


def test_checks_leave_torch_as_it_was():
    torch.manual_seed(5)
    before = torch.random.get_rng_state(), torch.get_default_dtype()
    verify.run(["attention", "order"], trials=1)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.get_default_dtype() == before[1]


# The library made wrong, and rows that must see it; where rows are named, only these are run.


def test_a_rotation_the_other_way_turns_rows_red(monkeypatch):
    from joformer.attention import _functional as functional

    right = sys.modules["joformer.rotation"].rotate

    def other_way(x, frames, inverse=False):
        return right(x, frames, inverse=not inverse)

    for module in (functional, verify.attention):
        monkeypatch.setattr(module, "rotate", other_way)
    assert red() == {13, 14}


def test_a_rotation_without_its_inverse_turns_rows_red(monkeypatch):
    from joformer.attention import _functional as functional

    right = sys.modules["joformer.rotation"].rotate
    for module in (functional, verify.attention):
        monkeypatch.setattr(module, "rotate", lambda x, frames, inverse=False: right(x, frames))
    assert red(13, 23) == {13, 23}
    assert red("algebra", "transforms", 58) == set()


def test_a_sign_flipped_in_the_kernel_turns_rows_red(monkeypatch):
    kernels = sys.modules["joformer.rotation._eager"]
    rotate_into, inverse_of = kernels.rotate_into, kernels.inverse_of
    for module in ("joformer.rotation._eager", "joformer.rotation._rotate"):
        flipped = lambda x, rotation, out: rotate_into(x, inverse_of(rotation), out)  # noqa: E731
        monkeypatch.setattr(sys.modules[module], "rotate_into", flipped, raising=False)
    assert red(13, 14) == {13, 14}


def test_the_journey_from_dst_to_src_turns_rows_red(monkeypatch):
    monkeypatch.setattr(Group, "journey", lambda self, src, dst: self.multiply(self.inverse(src), dst))
    assert red(3, 10, 12, 13, 22, 33, 47) == {3, 10, 12, 13, 22, 33, 47}


def test_the_journey_multiplied_in_the_wrong_order_turns_curved_rows_red(monkeypatch):
    monkeypatch.setattr(Group, "journey", lambda self, src, dst: self.multiply(src, self.inverse(dst)))
    assert red(3, 10, 22, 26, 37, 47) == {3, 10, 22}  # on the torus (26, 37, 47) the order must not matter


@pytest.mark.parametrize("group", [Torus, Orthogonal])
def test_a_scan_off_by_one_turns_rows_red(group, monkeypatch):
    right = group.prefixes
    monkeypatch.setattr(group, "prefixes", lambda self, steps, *, exclusive: right(self, steps, exclusive=False))
    rows = {2, 3, 21, 22, 33} if group is Orthogonal else {3}
    assert red(*rows) == rows


def test_a_scan_that_runs_backwards_turns_rows_red(monkeypatch):
    right = Orthogonal.prefixes

    def descending(self, steps, *, exclusive):
        return right(self, steps.mT, exclusive=exclusive).mT

    monkeypatch.setattr(Orthogonal, "prefixes", descending)
    assert red(2, 3, 21, 22, 33) == {2, 3, 21, 22, 33}


def test_a_library_that_raises_is_a_red_row_not_a_crash(monkeypatch):
    def broken(self, a, v):
        raise ValueError("broken\non two lines")

    monkeypatch.setattr(Torus, "act", broken)
    result = verify.run(["4"], trials=1)[0]
    assert not result.ok
    assert result.error == "ValueError: broken"
    assert result.as_json()["residual"] is None


def made(verdict="W", residual=0.0, gap=1.0, error=""):
    claim = Claim(1, "s", "l", verdict, "p", "t", "g", 1e-9, 0.1, lambda draw: Measured(0.0))
    return Result(claim, residual, gap, 0.0, error)


def test_what_counts_as_ok():
    assert made().ok
    assert not made(gap=None).ok
    assert not made(residual=1e-8).ok
    assert not made(residual=math.nan).ok
    assert not made(gap=0.05).ok
    assert not made(gap=math.nan).ok
    assert not made(error="ValueError").ok
    assert made(verdict="H", gap=None).ok


def test_the_worst_residual_and_the_smallest_gap_count():
    section = Section("made")
    seen = iter([Measured(1e-12, gap=5.0), Measured(1e-3, gap=0.2), Measured(0.0, gap=3.0)])
    section(1, "l", "W")(lambda draw: next(seen))
    result = verify._check(section.claims[0], seed=0, trials=3)
    assert (result.residual, result.gap) == (1e-3, 0.2)
    assert math.isnan(worst(0.0, math.nan))


def test_draws_are_what_they_say():
    draw = Draw(3)
    assert draw.noise(2, 3).dtype == torch.float64
    Orthogonal(4).check(draw.rotations(5))
    assert draw.curved(2).curved_pair() is not None
    assert draw.flat(2).curved_pair() is None
    assert 2 <= int(draw.whole(low=2, high=4)) < 4


def test_claims_are_named_by_section_row_or_number():
    assert [c.row for c in verify.choose("12")] == [c.row for c in verify.choose(12)] == [12]
    assert verify.choose("Algebra") == verify.SECTIONS["algebra"]
    assert len(verify.choose()) == 68


def test_statements_of_our_own_are_checked_where_they_are_named(joformer):
    own = verify.OURS["separation"]
    assert [claim.row for claim in own] == list(range(101, 111))
    assert verify.choose("separation") == own
    assert verify.choose(["12", "104"])[-1] == own[3]
    for claim in own:
        assert (claim.verdict, claim.printed, bool(claim.statement and claim.gap)) == ("O", "", True), claim.row
    code, out, _ = joformer("verify", "--only", "separation")
    assert code == 0
    assert out.rstrip().endswith("10 claims: 10 ours, which hold. All as they should be.")


def test_what_scores_alone_cannot_tell_is_seen_where_values_are_rotated_too(monkeypatch):
    """A library that always transports values: the limits of scores alone are broken, and what scores alone build."""
    for place in ("_module", "_functional"):
        monkeypatch.setattr(f"joformer.attention.{place}.sides", lambda transport: (transport != "none", True))
    assert red("separation") == {101, 102, 103, 105, 106, 107, 108, 110}


@pytest.mark.refused
@pytest.mark.parametrize("options", [{"seed": 1.5}, {"trials": 1.5}, {"trials": "3"}, {"seed": None}])
def test_numbers_that_are_not_whole_are_refused(options):
    with pytest.raises(ValueError, match="must be a whole number"):
        verify.run(["1"], **options)


def test_a_row_that_fails_says_so():
    text = "\n".join(lines(made(residual=1.0, gap=0.05)))
    assert "1.0e+00 NOT ≤ 1e-09" in text
    assert "0.05 NOT ≥ 0.1" in text
    assert max(map(len, lines(verify.run(7, trials=1)[0], width=60)[1:])) <= 60


# The command


def test_a_reader_who_stops_reading_is_no_error(tmp_path):
    words = f"{sys.executable} -m joformer.cli verify --trials 1 --markdown | head -n 2"
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (run.returncode, run.stderr) == (0, "wrote docs/claims.md\n")
    assert (tmp_path / "docs/claims.md").exists()  # the page is written all the same


def test_a_failure_shows_even_where_nobody_reads(monkeypatch, joformer):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(Group, "journey", lambda self, src, dst: self.multiply(self.inverse(src), dst))
    monkeypatch.setattr(sys, "stdout", Closed())
    assert joformer("verify", "--only", "3")[0] == 1


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode, lambda: default_dtype(torch.bfloat16)])
def test_the_callers_modes_change_nothing(surroundings):
    with surroundings():
        assert [r.claim.row for r in verify.run(["attention", "order", "58"], trials=1) if not r.ok] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line():
    words = f"{sys.executable} -m joformer.cli verify --only 1 > /dev/full"
    run = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "No space left" in run.stderr


def test_the_command_is_installed_and_its_json_is_a_list_of_rows():
    words = [sys.executable, "-m", "joformer.cli", "verify", "--json", "--only", "algebra", "40", "--trials", "1"]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = json.loads(run.stdout)
    assert [row["id"] for row in rows] == [*range(1, 13), 40]
    assert {"id", "section", "label", "verdict", "residual", "tolerance", "ok"} <= set(rows[0])
    assert all(row["ok"] is True for row in rows)


def test_text_names_label_print_truth_and_numbers(joformer):
    code, out, _ = joformer("verify", "--only", "26")
    assert code == 0
    assert re.search(r"26  W  ok .*prop:alibi-separation", out)
    assert "printed   qᵀRⁿk" in out
    assert "true      β_b = q₂k₁ − q₁k₂" in out
    assert "residual" in out
    assert "gap" in out
    assert "1 claim: 1 wrong as printed. All as they should be." in out


def test_a_red_row_exits_with_1(monkeypatch, joformer):
    monkeypatch.setattr(Group, "journey", lambda self, src, dst: self.multiply(self.inverse(src), dst))
    code, out, _ = joformer("verify", "--only", "3")
    assert code == 1
    assert "DISAGREES" in out
    assert "These disagree with their verdict: 3." in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "physics"], "no section or row 'physics': use algebra, attention, order, transforms, tables"),
        (["--only", "69"], "or a row 1 to 68"),
        (["--trials", "0"], "trials must be 1 or more"),
        (["--only", "1", "--markdown"], "leave out --only"),
        (["--only", "1", "--figures", "/proc/nowhere"], "cannot write into"),
    ],
)
def test_a_users_mistake_is_one_line(words, says, joformer):
    code, _, err = joformer("verify", *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_markdown_and_figures_land_in_their_folders(tmp_path, monkeypatch, joformer):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "path_spread_figure", partial(figures.path_spread_figure, size=4))
    code, _, err = joformer("verify", "--trials", "1", "--seed", "4", "--markdown", "--figures", "pictures")
    assert code == 0
    page = (tmp_path / "docs/claims.md").read_text(encoding="utf-8")
    assert "| 26 | prop:alibi-separation (a) | W |" in page
    assert "`joformer verify --markdown --seed 4 --trials 1`" in page
    assert len(list((tmp_path / "pictures").glob("*.svg"))) == len(list((tmp_path / "pictures").glob("*.png"))) == 5
    assert "wrote docs/claims.md" in err


def test_a_page_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, joformer):
    (tmp_path / "docs").write_text("a file where the folder should be")
    monkeypatch.chdir(tmp_path)
    code, _, err = joformer("verify", "--trials", "1", "--markdown")
    assert code == 2
    assert err.count("\n") == 1
    assert "docs is a file: give a directory" in err


def test_the_page_in_docs_is_of_these_claims():
    """The numbers depend on the machine, the words do not."""
    rows = {}
    for line in (ROOT / "docs/claims.md").read_text(encoding="utf-8").splitlines():
        cells = [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0].isdigit():
            rows[int(cells[0])] = cells[1:5]
    assert rows == {c.row: [c.label, c.verdict, c.printed, c.statement] for c in verify.CLAIMS}


def test_the_list_of_options_is_guarded():
    """An option more is a decision, not an accident."""
    assert [f.name for f in dataclasses.fields(cli.Verify)] == [
        "only", "seed", "trials", "json", "markdown", "figures"
    ]  # fmt: skip
