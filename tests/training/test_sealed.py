"""A finished run is sealed: any byte that is not what was written is noticed, and repaired from the checkpoint."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from runner import config_of, lm_task, logged, recipe_of
from safetensors.torch import load_file, save_file

from joformer import cli
from joformer._io import checksum, sealed
from joformer.experiments.results import gather
from joformer.models import JoFormerLM, load, save
from joformer.training import checkpoints, open_run, train
from joformer.training.state import State

FILES = ("config.json", "manifest.json", "metrics.jsonl", "model.safetensors", "tokenizer.json")


pytestmark = pytest.mark.usefixtures("one_thread", "no_board")


def run(out, heard=None, **changes):
    with logged([] if heard is None else heard):
        return train(config_of("lm", {}), lm_task(), recipe_of({"steps": 6} | changes), out)


@pytest.fixture(scope="module")
def finished(fast_folder):
    """A run that has ended, with checkpoints of its steps 2, 4 and 6."""
    with fast_folder() as folder:
        run(folder / "run")
        yield folder / "run"


@pytest.fixture
def out(finished, memory):
    return shutil.copytree(finished, memory / "run")


def contents(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in FILES}


def test_the_manifest_lists_all_that_is_a_result(out):
    about = json.loads((out / "manifest.json").read_text())
    assert about["steps"] == 6
    assert about["files"] == {name: checksum(out / name) for name in FILES if name != "manifest.json"}


# -- damage, and what becomes of it ------------------------------------------------------------------------------------


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


def zeroed(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10] + bytes(len(data) - len(data) * 9 // 10))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path):
    path.write_bytes(b"")


def missing(path):
    path.unlink()


def longer(path):
    path.write_bytes(path.read_bytes() + b"\n")


def nan(path):
    weights = load_file(path)
    weights["embed.weight"][3, 5] = torch.nan
    save_file(weights, path)


def halved(path):
    save_file({name: value.half() for name, value in load_file(path).items()}, path)


ANY = (flipped, zeroed, truncated, emptied, missing, longer)
WRONG = [
    *[("model.safetensors", damage) for damage in (*ANY, nan, halved)],
    *[("tokenizer.json", damage) for damage in (flipped, missing)],
    *[("config.json", damage) for damage in (flipped, missing)],
    *[("manifest.json", damage) for damage in (flipped, emptied, missing)],
    ("metrics.jsonl", longer),
    ("metrics.jsonl", zeroed),  # within its last line
]


@pytest.mark.parametrize(("name", "damage"), WRONG, ids=lambda one: getattr(one, "__name__", one))
def test_train_repairs_what_is_damaged(out, finished, name, damage):
    damage(out / name)
    heard = []
    result = run(out, heard)
    assert result == json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert contents(out) == contents(finished)
    (line,) = heard
    assert line.startswith(f"{out / name} ")
    assert line.endswith(f"; repaired from {out / 'checkpoints' / '00000006'}")
    heard.clear()
    run(out, heard)
    assert heard == [f"{out} is already finished: 6 steps"]


@pytest.mark.parametrize("damage", [truncated, emptied])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_log_that_is_shorter_falls_back_to_the_checkpoint_that_fits(out, finished, kept, damage):
    """Lines of metrics.jsonl: the evaluation of 4, losses of 5, losses and evaluation of 6."""
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]) + (lines[kept][:-7] if damage is truncated else b""))
    (out / "manifest.json").unlink()
    heard = []
    run(out, heard)
    assert contents(out) == contents(finished)
    places = [json.loads((one / "state.json").read_text())["metrics"]["bytes"] for one in checkpoint_folders(finished)]
    size = len(b"".join(lines[:kept])) + (len(lines[kept]) - 7 if damage is truncated else 0)
    fits = max(step for step, place in zip((2, 4, 6), places, strict=True) if place <= size)
    told = [line for line in heard if "is shorter than when" in line]
    assert len(told) == (6 - fits) // 2
    assert all("was saved; trying the previous one" in line for line in told)
    if fits < 6:
        assert heard[-1] == f"resuming {out} at step {fits} of 6"


def checkpoint_folders(out: Path) -> list[Path]:
    return sorted(path for path in (out / "checkpoints").iterdir() if path.name.isdigit())


def test_a_log_that_fits_no_checkpoint_is_refused(out):
    for place in checkpoint_folders(out)[:-1]:
        shutil.rmtree(place)
    (out / "metrics.jsonl").write_bytes(b"")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"was saved, and no other checkpoint fits: restore it") as refusal:
        run(out)
    assert "\n" not in str(refusal.value)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [*ANY[:4], longer, nan, halved], ids=lambda damage: damage.__name__)
def test_readers_notice_and_use_the_checkpoint(out, finished, damage):
    damage(out / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.safetensors (is damaged|was cut short or altered|does not fit)"
    ) as one:
        load(out)
    assert "\n" not in str(one.value)
    heard = []
    with logged(heard):
        opened = open_run(out)
    (line,) = heard
    assert line.endswith(f"; using {out / 'checkpoints' / '00000006'} instead")
    assert opened.step == 6
    assert opened.run == open_run(finished).run
    for name, value in load(finished).state_dict().items():
        assert torch.equal(opened.model.state_dict()[name], value), name
    (table,) = gather([out])
    assert any("model.safetensors was cut short or altered" in note for note in table.notes)
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(ValueError, match=r"model\.safetensors"), logged(heard):
        open_run(out)


def test_one_bit_anywhere_is_noticed_by_load(out):
    path = out / "model.safetensors"
    data = path.read_bytes()
    for at in range(0, len(data), len(data) // 37):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            load(out)
    path.write_bytes(data)
    load(out)


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "manifest.json"])
def test_a_report_has_no_numbers_of_damaged_files(out, name):
    assert not any("repairs" in note for note in gather([out])[0].notes)
    path = out / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(ValueError, match=rf"{name} was .*altered.*; the command that trained it repairs it") as refusal:
        gather([out])
    assert "\n" not in str(refusal.value)


def test_a_damaged_configuration_is_told(out, finished):
    (out / "config.json").write_text("{")
    heard = []
    with logged(heard):
        opened = open_run(out)
    assert [line.rpartition("; ")[2].split()[0] for line in heard] == ["using", "using"]
    assert (opened.run, opened.notes) == (open_run(finished).run, {})
    assert opened.model.config == load(finished).config


@pytest.mark.refused
@pytest.mark.parametrize("damage", [flipped, missing], ids=lambda damage: damage.__name__)
def test_generate_without_its_tokenizer_is_one_line(out, damage, monkeypatch, capsys):
    damage(out / "tokenizer.json")
    monkeypatch.setattr(sys, "argv", ["joformer", "generate", str(out), "--tokens", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert len(told) == 1
    assert "tokenizer.json" in told[0]
    assert told[0].endswith("the command that trained it repairs it")


# -- runs that ended before there were manifests -----------------------------------------------------------------------


def test_a_run_without_a_manifest_is_read_and_sealed(out, finished):
    (out / "manifest.json").unlink()
    assert torch.equal(load(out).embed.weight, load(finished).embed.weight)
    with logged(pytest.fail):
        assert open_run(out).step is None
    assert not any("not finished" in note for note in gather([out])[0].notes)
    torch.set_num_threads(2)  # nothing is computed, so nothing depends on the machine
    try:
        heard = []
        run(out, heard)
    finally:
        torch.set_num_threads(1)
    assert heard == [f"{out / 'manifest.json'} is missing; repaired from {out / 'checkpoints' / '00000006'}"]
    assert contents(out) == contents(finished)


def test_without_its_last_line_it_has_not_ended(out, finished):
    """As the older version left it after a power failure: weights, and a log that ends before them."""
    (out / "manifest.json").unlink()
    path = out / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    (table,) = gather([out])
    assert any("is not finished: measured after 4 of 6 steps" in note for note in table.notes)
    run(out)
    assert contents(out) == contents(finished)


def test_saving_over_a_run_takes_its_manifest_away(out):
    model = JoFormerLM(config_of("lm", {"vocab": 9}))
    save(model, out)
    assert torch.equal(load(out).embed.weight, model.embed.weight)


# -- checkpoints that are whole and make no sense ----------------------------------------------------------------------


def forge(place: Path, **changes) -> None:
    """Change what state.json says, and seal it again."""
    state = json.loads((place / "state.json").read_text())
    del state["sha256"]
    state["files"] = {name: checksum(place / name) for name in state["files"]}
    (place / "state.json").write_bytes(sealed(state | changes))


def of_one_number(name, key):
    def forged(place):
        tensors = load_file(place / f"{name}.safetensors")
        tensors[key] = tensors[key].flatten()[:1].clone()
        save_file(tensors, place / f"{name}.safetensors")
        forge(place)

    return forged


def of_another_dtype(place):
    halved(place / "model.safetensors")
    forge(place)


def raw(content):
    return lambda place: (place / "state.json").write_bytes(content)


FORGED = {
    "an infinite step": raw(b'{"step": 1e999, "files": {}, "sha256": ""}'),
    "a step that is text": lambda place: forge(place, step="6"),
    "deep": raw(b'{"step": ' + b"[" * 100_000),
    "nearly too deep": raw(b'{"sha256": "", "step": ' + b"[" * 900 + b"]" * 900 + b"}"),
    "no settings": lambda place: forge(place, settings=None),
    "no losses": lambda place: forge(place, recent=[float("nan")]),
    "an absurd stage": lambda place: forge(place, stage=10**9),
    "an absurd log": lambda place: forge(place, metrics={"bytes": 1e999, "sha256": ""}),
    "files elsewhere": lambda place: forge(place, files={"../00000004/model.safetensors": "0"}),
    "no files": lambda place: forge(place, files={}),
    "no scaler": lambda place: forge(place, scaler=3),
    "weights of one number": of_one_number("model", "embed.weight"),
    "moments of one number": of_one_number("optimizer", "exp_avg/embed.weight"),
    "a step of one number": of_one_number("optimizer", "step/embed.weight"),
    "averages of one number": of_one_number("averaged", "embed.weight"),
    "weights of another dtype": of_another_dtype,
}


@pytest.mark.refused
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_a_line_and_the_next_one(out, finished, name):
    for file in ("model.safetensors", "manifest.json"):
        (out / file).unlink()
    FORGED[name](out / "checkpoints" / "00000006")
    heard = []
    run(out, heard)
    assert contents(out) == contents(finished), heard
    damage, going_on = heard
    assert "\n" not in damage
    assert len(damage) < 500
    if "of one number" in name and not name.startswith("a step"):
        assert "(1,)" in damage
    assert damage.endswith("; trying the previous one, 00000004"), damage
    assert going_on == f"resuming {out} at step 4 of 6"


def test_checkpoints_that_all_fit_badly_are_not_thrown_away(out):
    """They may be of another version: to begin anew would lose them."""
    for file in ("model.safetensors", "manifest.json"):
        (out / file).unlink()
    for place in checkpoint_folders(out):
        of_another_dtype(place)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(
        ValueError, match=r"does not fit the model, first at .*: another architecture or version made it"
    ):
        run(out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


ABSURD = {"layers": 200_000, "dim": 1 << 40, "vocab": 1 << 62, "heads": 1 << 40, "hidden": 1 << 50, "window": -1}


@pytest.mark.refused
@pytest.mark.parametrize("field", ABSURD)
def test_an_absurd_configuration_takes_no_memory(out, finished, field):
    """Compared with the header of the weights before a model is built."""
    (out / "model.safetensors").unlink()
    place = out / "checkpoints" / "00000006"
    about = json.loads((place / "config.json").read_text())
    about["config"][field] = ABSURD[field]
    (place / "config.json").write_text(json.dumps(about))
    forge(place)
    with pytest.raises(ValueError, match=str(place)) as refusal:
        load(place)
    assert "\n" not in str(refusal.value)
    heard = []
    with logged(heard):
        assert open_run(out).step == 4
    assert heard[0].endswith("; trying the previous one, 00000004")
    with logged(pytest.fail):
        assert open_run(finished).step is None


@pytest.mark.refused
def test_a_model_is_built_once_its_header_fits(out, monkeypatch):
    """The order itself: no weight is made on the CPU for a file that does not fit."""
    (out / "manifest.json").unlink()
    about = json.loads((out / "config.json").read_text())
    about["config"]["dim"] = 32
    (out / "config.json").write_text(json.dumps(about))
    devices, usual = [], torch.empty

    def empty(*args, **kwargs):
        made = usual(*args, **kwargs)
        devices.append(made.device.type)
        return made

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(ValueError, match=r"does not fit config\.json, first at .*: they belong to two models"):
        load(out)
    assert set(devices) == {"meta"}


# -- room --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "steps", "save_every", "held", "wanted"),
    [
        (3, 100, 10, 0, 4),  # three that are kept, and one that is being written
        (1, 100, 10, 0, 2),
        (9, 30, 10, 0, 4),  # there are only three, and the final weights
        (9, 35, 10, 0, 5),
        (3, 5, 100, 0, 2),
        (3, 100, 10, 2, 2),
        (3, 100, 10, 3, 1),
        (3, 100, 10, 7, 1),
    ],
)
def test_room_is_asked_for_all_checkpoints_that_exist_at_once(
    memory, monkeypatch, keep, steps, save_every, held, wanted
):
    asked = []

    def require_room(folder, size, count):
        asked.append((size, count))
        raise ValueError("enough is known")

    monkeypatch.setattr(checkpoints, "require_room", require_room)
    monkeypatch.setattr(checkpoints, "held", lambda folder: held)
    monkeypatch.setattr(State, "size", 7)
    with pytest.raises(ValueError, match="enough is known"):
        run(memory / "run", keep=keep, steps=steps, save_every=save_every)
    assert asked == [(7, wanted)]
