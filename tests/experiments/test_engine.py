"""Cells in processes that die, fail, are stopped and go on: nothing is lost, nothing run twice, and no bit differs."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import mishaps
import pytest
import torch
from mishaps import AT, LONG, STEPS, attempts, steps_of

from joformer.experiments import TABLES, run
from joformer.experiments.engine import Done, run_local
from joformer.experiments.results import gather
from joformer.experiments.running import finished
from joformer.experiments.tables import RESULT, TABLE

JOBS = 2


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def mark(tmp_path):
    (tmp_path / "mark").mkdir()
    return tmp_path / "mark"


@pytest.fixture
def alone(tmp_path):
    """What cells measure when each is run by itself in this process, and nothing happens to it."""

    def measured(*cells):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            calm = [replace(cell, source=replace(cell.source, fate="calm")) for cell in cells]
            return [run(cell, tmp_path / "alone")["measured"] for cell in calm]
        finally:
            torch.set_num_threads(threads)

    return measured


@pytest.fixture(scope="module")
def start():
    """Commands in processes that start at once, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["joformer.cli", "joformer.experiments.report", "rich.progress"])
    started = []

    def begin(log, *words, limit=None):
        process = context.Process(target=mishaps.command, args=([*map(str, words)], str(log), limit))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


@pytest.fixture
def joformer(joformer, monkeypatch):
    """The command with the table of mishaps; its cells in this process too, one after the other."""

    def in_turn(cells, out, *, jobs, execution):
        for cell in cells:
            yield Done(cell, run(cell, out))

    monkeypatch.setitem(TABLES, "mishaps", mishaps.tables)
    monkeypatch.setattr("joformer.experiments.engine.run_local", in_turn)
    return joformer


def until(reached, *given):
    end = time.monotonic() + 240
    while not reached(*given):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def gone(pid):
    """Whether the process has ended, be it waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def only(*fates):
    return ["--only", *(f"mishaps/{fate}/*" for fate in fates)]


def files_of(out, *fates):
    """Every file of finished cells: its bytes and when it was written."""
    places = [path for fate in fates for path in sorted((out / "mishaps" / fate).rglob("*")) if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in places}


def test_every_mishap_of_a_worker(tmp_path, mark, alone):
    cells = [cell for plan in mishaps.tables("laptop", mark, (0, 1), None, True) for cell in plan.cells]
    cells = [cell for cell in cells if cell.model != "lingers" and (cell.seed == 0 or cell.model == "plain")]
    out = tmp_path / "out"
    events = [event for event in run_local(cells, out, jobs=JOBS) if event is not None]
    assert sorted(event.cell.name for event in events) == sorted(cell.name for cell in cells)
    assert multiprocessing.active_children() == []
    by = {(event.cell.model, event.cell.seed): event for event in events}

    # Killed in the middle of a cell: the next process goes on from step 4, and the bits are those of a calm run.
    well = [cell for cell in cells if cell.model in ("plain", "killed once")]
    assert [by[cell.model, cell.seed].result["measured"] for cell in well] == alone(*well)
    assert by["plain", 0].result["measured"] != by["plain", 1].result["measured"]
    assert steps_of(mark, "killed once") == [*range(AT + 1), *range(4, STEPS)]
    assert len(attempts(out, "killed once")) == len(set(attempts(out, "killed once"))) == 2
    # What is finished was begun once, and every step taken once.
    for seed in (0, 1):
        assert len(attempts(out, "plain", seed)) == 1
        assert steps_of(mark, "plain", seed) == list(range(STEPS))
    for cell in well:
        assert finished(cell, out) == by[cell.model, cell.seed].result

    # Killed every time: given up after three, and named.
    assert by["killed", 0].result is None
    assert (
        by["killed", 0].error
        == "its process died 3 times, the last time by signal 9; memory may be short, workers.log may say more"
    )
    assert len(attempts(out, "killed")) == 3
    assert steps_of(mark, "killed") == [*range(AT + 1), 4, 5, AT, 4, 5, AT]
    # What a cell raises is one line, and it is not tried again.
    assert by["fails", 0].error == "RuntimeError: nobody foresaw this"
    assert by["refused", 0].error == "there is no such data: look elsewhere"
    assert len(attempts(out, "fails")) == len(attempts(out, "refused")) == 1


def _amid(process, mark, out, steps):
    """Whether both short cells have ended, and the long one is on its way; or all is over."""
    ended = list(out.glob(f"mishaps/plain/*/{RESULT}"))
    return (len(steps_of(mark, "lingers")) > steps and len(ended) == 2) or not process.is_alive()


def test_stopped_stopped_killed_and_finished(tmp_path, mark, start, alone):
    """The command gets Ctrl-C, then SIGTERM, then SIGKILL; at last the same command ends it."""
    out = tmp_path / "out"
    words = ["reproduce", "mishaps", "--data", mark, "--seeds", 2, "--jobs", JOBS, "--out", out]
    words += ["--only", "mishaps/plain/*", "mishaps/lingers/seed-0"]
    kept = {}
    for turn, number in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)):
        log = tmp_path / f"{turn}.log"
        before = len(steps_of(mark, "lingers"))
        process = start(log, *words)
        # Cells of the first seed come first; both plain ones are finished in the first turn.
        until(_amid, process, mark, out, before + 4)
        assert process.is_alive(), log.read_text()
        workers = attempts(out, "lingers")
        assert len(workers) == turn + 1
        if not turn:  # a second command in this folder is told so, and disturbs nothing
            second = start(tmp_path / "second.log", *words)
            second.join(120)
            assert second.exitcode == 2
            assert (tmp_path / "second.log").read_text().splitlines()[-1] == (
                f"joformer: {out} is in use by another run: wait for it, or choose another --out"
            )
            assert "failed" not in (tmp_path / "second.log").read_text()
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        process.join(120)
        lines = log.read_text().splitlines()
        if number == signal.SIGKILL:
            assert process.exitcode == -number
            until(gone, workers[-1])  # by itself, having saved
        else:
            assert process.exitcode == 128 + number, lines
            assert lines[-1] == (f"joformer: stopped with 2 of 3 runs finished in {out}; the same command resumes"), (
                lines
            )
            assert "Traceback" not in log.read_text()
        assert all(gone(worker) for worker in [*workers, *attempts(out, "plain", 0), *attempts(out, "plain", 1)])
        kept = kept or files_of(out, "plain")
        assert not list(out.glob(f"mishaps/lingers/*/{RESULT}"))
        taken = steps_of(mark, "lingers")
        assert taken == list(range(len(taken))), "a step that was taken is not taken again"
        if turn:
            assert f"2 of 3 runs in {out} are already finished" in lines

    (mark / "open").touch()
    log = tmp_path / "last.log"
    process = start(log, *words)
    process.join(240)
    assert process.exitcode == 0, log.read_text()
    assert files_of(out, "plain") == kept
    assert steps_of(mark, "lingers") == list(range(LONG))
    assert len(attempts(out, "lingers")) == 4
    results = json.loads((out / "mishaps" / "lingers" / "seed-0" / RESULT).read_text())
    cells = [cell for plan in mishaps.tables("laptop", mark, (0,), None, True) for cell in plan.cells]
    assert alone(cells[-1]) == [results["measured"]]
    assert (out / "report.html").is_file()


def test_a_full_disk_is_a_line_for_every_cell(tmp_path, mark, start):
    """No file of more than 14,000 bytes: the text is shorter, checkpoints are not."""
    log = tmp_path / "log"
    words = ["reproduce", "mishaps", "--data", mark, "--seeds", 1, "--jobs", 1, *only("plain", "killed-once")]
    process = start(log, *words, "--out", tmp_path / "out", limit=14_000)
    process.join(240)
    told = log.read_text()
    assert process.exitcode == 2, told
    assert "Traceback" not in told
    assert told.count("failed: cannot save the checkpoint") == 2, told
    assert told.splitlines()[-1] == "joformer: all 2 runs failed, as logged above: the same command tries again"
    assert not list((tmp_path / "out").rglob(RESULT))


def test_more_seeds_are_added(joformer, tmp_path, mark):
    out = tmp_path / "out"
    words = ["reproduce", "mishaps", "--data", mark, "--out", out, *only("plain")]
    assert joformer(*words, "--seeds", 1)[0] == 0
    before = files_of(out, "plain")
    code, said, told = joformer(*words, "--seeds", 3)
    assert code == 0
    assert "1 of 3 runs" in told
    assert "Mishaps" in said
    after = files_of(out, "plain")
    assert {place: after[place] for place in before} == before
    cells = [f"mishaps/plain/seed-{seed}" for seed in range(3)]
    assert sorted(json.loads((out / "mishaps" / TABLE).read_text())["cells"]) == cells
    # Fewer again: what was planned before stays planned.
    assert joformer(*words, "--seeds", 1)[0] == 0
    assert sorted(json.loads((out / "mishaps" / TABLE).read_text())["cells"]) == cells
    assert files_of(out, "plain") == after
    # The command of a cell, which the report shows, gives that cell.
    result = json.loads((out / cells[2] / RESULT).read_text())
    assert result["command"] == f"joformer reproduce mishaps --data mark --out out --only {cells[2]}"
    # No whole path is published.
    places = {"mark": mark, "out": tmp_path / "again"}
    again = [places.get(word, word) for word in result["command"].split()[1:]]
    assert joformer(*again)[0] == 0
    assert json.loads((tmp_path / "again" / cells[2] / RESULT).read_text())["measured"] == result["measured"]


@pytest.mark.refused
def test_what_cannot_go_on_is_one_line(joformer, tmp_path, mark):
    out = tmp_path / "out"
    words = ["reproduce", "mishaps", "--data", mark, "--seeds", 1, *only("plain")]
    assert joformer(*words, "--out", out)[0] == 0

    def refused(*more, **where):
        code, said, told = joformer(*words, *more, "--out", where.get("out", out))
        assert (code, said) == (2, ""), told
        assert told.splitlines()[-1].startswith("joformer: ")
        assert len([line for line in told.splitlines() if not line.startswith("mishaps: ")]) == 1, told
        return told.splitlines()[-1]

    assert f"{out}/mishaps/plain/seed-0 holds a run with other settings" in refused("--steps", 9)
    assert "holds a table with scale = laptop, not paper" in refused("--scale", "paper", "--seeds", 2)
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in refused(out=file)
    assert "cannot write into" in refused(out=Path("/proc/nothing"))
    assert "--jobs must be 1 or more, got 0" in refused("--jobs", 0)
    for name, contents in (("plain/seed-0/result.json", ("{", "[]", "\0\0")), ("table.json", ("{", "null", "\xff"))):
        place = out / "mishaps" / name
        before = place.read_bytes()
        for content in contents:
            place.write_bytes(content.encode("latin-1"))
            assert f"{place} is damaged (" in refused()
        place.write_bytes(before)
    # A table of an older hand, in which something is missing, is completed.
    place = out / "mishaps" / TABLE
    about = json.loads(place.read_text())
    place.write_text(json.dumps({key: value for key, value in about.items() if key not in ("models", "cells")}))
    assert joformer(*words, "--out", out)[0] == 0
    assert json.loads(place.read_text()) == about


def test_a_cell_begun_with_other_settings_is_not_continued(tmp_path, mark):
    """Not finished, so nothing but its checkpoint knows: the run itself refuses."""
    (plan,) = mishaps.tables("laptop", mark, (0,), None, True)
    cell = next(cell for cell in plan.cells if cell.model == "fails")
    with pytest.raises(RuntimeError):
        run(cell, tmp_path)
    with pytest.raises(ValueError, match=r"recipe.lr = 0.01, not 0.5"):
        run(replace(cell, recipe=replace(cell.recipe, lr=0.5)), tmp_path)


def test_speed_is_said_where_it_is_known(tmp_path, mark):
    """speed.jsonl is not brought to the disk with the checkpoints: after a power cut it may be torn, or not there."""
    (plan,) = mishaps.tables("laptop", mark, (0,), None, True)
    cell = plan.cells[0]
    first = run(cell, tmp_path)
    assert first["seconds"] > 0
    assert first["step_ms"] > 0
    speed = tmp_path / cell.name / "speed.jsonl"
    for damage, known in ((speed.read_bytes() + b'{"step": 12, "sec', True), (b"\0\0\0", False), (None, False)):
        (tmp_path / cell.name / RESULT).unlink()
        speed.unlink() if damage is None else speed.write_bytes(damage)
        again = run(cell, tmp_path)
        assert (again["step_ms"] is not None) == known
        assert again["measured"] == first["measured"]
        assert again["curve"] == first["curve"]


def test_a_cell_whose_run_lost_its_last_line_has_its_numbers(tmp_path, mark):
    """As the power could leave it before finished runs were sealed: weights on the disk, the last evaluation not."""
    (plan,) = mishaps.tables("laptop", mark, (0,), None, True)
    cell = plan.cells[0]
    first = run(cell, tmp_path)
    folder = tmp_path / cell.name
    log = folder / "metrics.jsonl"
    for name in (RESULT, "manifest.json"):
        (folder / name).unlink()
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    again = run(cell, tmp_path)
    assert again["measured"] == first["measured"]
    assert "bits_per_byte" in again["measured"][""]
    assert again["curve"] == first["curve"]


@pytest.mark.refused
def test_a_result_that_was_altered_is_not_believed(tmp_path, mark):
    (plan,) = mishaps.tables("laptop", mark, (0,), None, True)
    plan = replace(plan, cells=plan.cells[:1])
    (cell,) = plan.cells
    plan.begin(tmp_path)
    run(cell, tmp_path)
    place = tmp_path / cell.name / RESULT
    whole = place.read_bytes()
    number = json.loads(whole)["measured"][""]["bits_per_byte"]
    place.write_bytes(whole.replace(f"{number}".encode(), f"{number / 2}".encode(), 1))
    for reader in (lambda: finished(cell, tmp_path), lambda: gather([tmp_path])):
        with pytest.raises(ValueError, match=r"result\.json.* was altered: its checksum is wrong") as refusal:
            reader()
        assert "\n" not in str(refusal.value)
    unsealed = {key: value for key, value in json.loads(whole).items() if key != "sha256"}
    place.write_text(json.dumps(unsealed))  # as older versions wrote it
    assert finished(cell, tmp_path) == unsealed
