"""Adding value transport to a trained Llama: all at once, or annealed in?

A small Llama (transformers' own) is trained on the source of Python's standard library. Training then resumes four
times from the same weights with the same batches: untouched, with transport at once, and with transport that grows from
0 to 1 over an eighth or over half of the steps. The comparison is on held-out loss; the figure shows it over steps.

    OMP_NUM_THREADS=1 python examples/annealing.py --out annealing.png          about 40 seconds

Results (three seeds, nats per byte after 80 more steps, and the mean over them):

    untouched                 2.2336   2.2586
    transport at once         2.2321   2.2634
    annealed over an eighth   2.2315   2.2597     over steps −0.0037 [−0.0067, −0.0007] against at once
    annealed over half        2.2321   2.2594     −0.0040 [−0.0121, 0.0041]

A model this small is hardly affected. For a larger one, see docs/integrations.md and results/annealing, made by

    python examples/annealing.py --data enwik8.xz --width 128 --layers 4 --context 256 --pretrain 1500 --steps 400 \
        --lr 0.0003 --seed 1 --seeds 5 --results curves.json
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from common import BLUE, GREY, ORANGE, arguments, fit, keep, sheet
from joformer._io import write_json
from joformer.experiments.statistics import paired
from joformer.integrations import Anneal, transport_values
from joformer.training import load_text
from joformer.training.data.text import windows

UNTOUCHED, AT_ONCE, EIGHTH, HALF = "untouched", "transport at once", "annealed over an eighth", "annealed over half"
COLOURS = {UNTOUCHED: GREY, AT_ONCE: ORANGE, EIGHTH: BLUE, HALF: "#3c9a5f"}


class Work:
    """The data and sizes, identical for every model."""

    def __init__(self, given) -> None:
        self.given = given
        self.text = load_text(given.data, vocab=256)
        last = len(self.text.valid) - given.context - 1
        self.held_out = windows(self.text.valid, torch.linspace(0, last, 24).long(), given.context + 1)

    def model(self) -> LlamaForCausalLM:
        given = self.given
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256, hidden_size=given.width, intermediate_size=3 * given.width,
                num_hidden_layers=given.layers, num_attention_heads=4, max_position_embeddings=given.context,
                use_cache=False, bos_token_id=None, eos_token_id=None,
            )
        )  # fmt: skip

    def loss(self, model, seed: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.text.train) - self.given.context, (8,), generator=generator)
        batch = windows(self.text.train, starts, self.given.context)
        return model(input_ids=batch, labels=batch).loss

    @torch.no_grad()
    def judge(self, model) -> float:
        """Held-out loss, nats per byte."""
        model.eval()
        losses = [model(input_ids=part, labels=part).loss.item() for part in self.held_out.split(8)]
        model.train()
        return sum(losses) / len(losses)

    def train_on(self, how: str, weights: dict, seed: int) -> dict[int, float]:
        """Held-out loss over steps for one way to continue training."""
        given, model = self.given, self.model()
        model.load_state_dict(weights)
        part = {EIGHTH: 8, HALF: 2}.get(how)
        anneal = Anneal(max(1, given.steps // part)) if part else None
        curve: dict[int, float] = {}

        def loss(step: int) -> torch.Tensor:
            if how != UNTOUCHED:
                transport_values(model, 1.0 if anneal is None else anneal(step))
            if step % max(1, given.steps // 10) == 0:
                curve[step] = self.judge(model)
            return self.loss(model, seed, given.pretrain + step)

        fit(model, loss, steps=given.steps, lr=given.lr)
        curve[given.steps] = self.judge(model)
        return curve


def main() -> None:
    given = arguments(
        __doc__, __file__, data="stdlib", width=64, layers=2, context=96, pretrain=300, steps=80, lr=1e-3, results=""
    )
    work = Work(given)
    done: dict[str, dict] = {}
    results = Path(given.results) if given.results else None
    if results is not None and results.exists():
        done = json.loads(results.read_text())["curves"]
    for seed in range(given.seed, given.seed + given.seeds):
        if str(seed) in done:
            continue
        torch.manual_seed(seed)
        model = work.model()
        fit(model, lambda step, m=model, s=seed: work.loss(m, s, step), steps=given.pretrain, lr=3e-3)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        done[str(seed)] = {how: work.train_on(how, weights, seed) for how in COLOURS}
        if results is not None:
            settings = {name: str(value) for name, value in vars(given).items() if name not in ("out", "results")}
            write_json(results, {"settings": settings, "curves": done})
        ends = ", ".join(f"{how} {list(curve.values())[-1]:.4f}" for how, curve in done[str(seed)].items())
        print(f"seed {seed}: {ends}", file=sys.stderr, flush=True)
    curves = {how: [list(runs[how].values()) for runs in done.values()] for how in COLOURS}
    print(f"held-out loss, nats per byte, after {given.steps} more steps, and its mean over them ({len(done)} seeds):")
    for how, runs in curves.items():
        end = sum(run[-1] for run in runs) / len(runs)
        over = sum(sum(run) / len(run) for run in runs) / len(runs)
        print(f"{how:<24}{end:8.4f}{over:9.4f}")
    for how in (EIGHTH, HALF):
        for what, of in (("at the end", lambda run: run[-1]), ("over steps", lambda run: sum(run) / len(run))):
            ours, theirs = (dict(enumerate(of(run) for run in curves[name])) for name in (how, AT_ONCE))
            gap = paired(ours, theirs, higher=False)
            if gap.low is not None:
                print(f"{how} − at once, {what}: {gap.centre:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}], {gap.verdict}")
    picture(done, given.out)


def picture(done: dict, out: Path) -> None:
    figure = sheet(7.5, 4.2)
    axes = figure.subplots()
    for how, colour in COLOURS.items():
        for number, runs in enumerate(done.values()):
            steps, losses = [int(step) for step in runs[how]], list(runs[how].values())
            axes.plot(steps, losses, color=colour, lw=1.2, alpha=0.8, label=how if number == 0 else None)
    axes.set_xlabel("further training steps")
    axes.set_ylabel("held-out loss, nats per byte")
    axes.legend(frameon=False, fontsize=8)
    keep(figure, out)


if __name__ == "__main__":
    main()
