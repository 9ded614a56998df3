"""Records which files five typical calls pass, in order, and writes them into docs/architecture.md.

    python docs/draw_walks.py            runs the five calls and writes the page
    python docs/draw_walks.py --check    exits with 1 if the page is out of date, or a call goes back up the house

A call goes up if a function of one room calls a function of a room that stands below it in `tests/test_house.py` and
that may import it: the lower floor would have to know who uses it.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import joformer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from draw_imports import order  # noqa: E402

ROOT = str(Path(joformer.__file__).parent) + "/"
PAGE = HERE / "architecture.md"


def record(walk: Callable[[], object]) -> tuple[dict[str, list[str]], set[str]]:
    """The files that a call passes, each with the functions that were called there, and the calls that went up."""
    passed: dict[str, list[str]] = {}
    upward: set[str] = set()
    floors = {room: at for at, room in enumerate(order())}

    def inside(frame: FrameType | None) -> str | None:
        name = frame.f_code.co_filename if frame else ""
        return name.removeprefix(ROOT) if name.startswith(ROOT) else None

    def floor(file: str) -> int:
        return floors.get(file.partition("/")[0].removesuffix(".py"), -1)

    def seen(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        file = inside(frame) if event == "call" else None
        if file is None or file.endswith("__init__.py") or name.startswith("<"):
            return
        functions = passed.setdefault(file, [])
        if name not in functions:
            functions.append(name)
        caller = frame.f_back
        while caller is not None and inside(caller) is None:
            caller = caller.f_back
        there = inside(caller)
        if there is not None and floor(there) < floor(file):
            upward.add(f"{there}: {caller.f_code.co_name} calls {file}: {name}")

    sys.setprofile(seen)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return passed, upward


def one_call() -> Callable[[], object]:
    from joformer import FixedFrames, journey_attention, positions

    q, k, v = torch.rand(3, 1, 16, 2, 64)

    def call() -> None:
        frames = FixedFrames(64)(positions.sequence(16))
        journey_attention(q, k, v, frames, causal=True)

    return call


def one_step() -> Callable[[], object]:
    from joformer import FixedFrames, JourneyAttention, JourneyCache, positions

    attention, module, cache = JourneyAttention(64, 2, causal=True), FixedFrames(32), JourneyCache()
    x = torch.rand(1, 1, 64)

    def call() -> None:
        with torch.no_grad():
            attention(x, module(positions.sequence(1, offset=cache.tokens)), cache=cache)

    return call


def one_transport() -> Callable[[], object]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from joformer import transport_values

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=2, **sizes)).eval()

    def call() -> None:
        transport_values(model)
        with torch.no_grad():
            model(torch.arange(5)[None], use_cache=False)

    return call


def one_batch() -> Callable[[], object]:
    from joformer.models import LMConfig
    from joformer.training import LanguageTask, Recipe, train
    from joformer.training.data import load_text

    text = load_text("stdlib", vocab=256)
    config = LMConfig(vocab=256, dim=32, layers=1, heads=2)

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(config, LanguageTask(text, context=32, batch=2), Recipe(steps=1), Path(folder) / "run")

    return call


def one_cell() -> Callable[[], object]:
    from joformer.experiments import Cell, ImageSource, run
    from joformer.models import ClassifierConfig
    from joformer.training import Recipe

    source = ImageSource("digits", cells=True)
    source.load()
    config = ClassifierConfig(dim=8, shape=(8, 8))
    cell = Cell("learned", "d = 8", 0, config, source, Recipe(steps=1), table="mnist")

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(cell, Path(folder))

    return call


WALKS = {"call": one_call, "step": one_step, "transport": one_transport, "batch": one_batch, "cell": one_cell}


def written(page: str) -> tuple[str, list[str]]:
    """The page with the five walks as they are now, and the calls that went up."""
    wrong = []
    for name, prepare in WALKS.items():
        torch.manual_seed(0)
        passed, upward = record(prepare())
        wrong += sorted(upward)
        lines = "".join(
            f"{at}. `{file}`: {', '.join(names[:4])}{', …' * (len(names) > 4)}\n"
            for at, (file, names) in enumerate(passed.items(), 1)
        )
        start, end = f"<!-- walk:{name} -->\n", "<!-- /walk -->"
        before, _, rest = page.partition(start)
        page = before + start + lines + end + rest.partition(end)[2]
    return page, wrong


def main() -> int:
    """Writes or checks the page."""
    warnings.simplefilter("ignore")
    before = PAGE.read_text()
    after, wrong = written(before)
    for line in wrong:
        print(f"goes up: {line}")
    if "--check" in sys.argv[1:]:
        if after != before:
            print("docs/architecture.md is out of date: python docs/draw_walks.py")
        return 1 if wrong or after != before else 0
    PAGE.write_text(after)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
