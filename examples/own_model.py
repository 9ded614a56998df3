"""Your own model in joformer's training loop: kill it at any moment, and the same command resumes bit-identically.

    python examples/own_model.py --out runs/echo            about 10 seconds
    torchrun --nproc-per-node 2 examples/own_model.py …     the same in two processes

A GRU learns to repeat the token from four steps ago: 12 % by chance, above 99 % after 300 steps.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

from joformer.training import Recipe, Task, generator, load_weights, train


class Echo(nn.Module):
    """Any module works; a JSON-serialisable `config` is written to config.json."""

    def __init__(self, tokens=8, width=48):
        super().__init__()
        self.config = {"tokens": tokens, "width": width}
        self.embed, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[0])


class Repeat(Task):
    """A batch depends only on the seed and the step: there is no data position to save."""

    def describe(self):
        return {"task": "repeat", "delay": 4, "batch": 32}

    def batch(self, seed, step, part, parts):
        tokens = torch.randint(8, (32, 24), generator=generator(seed, "batch", step))
        return tokens.chunk(parts)[part].to(self.device)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch)[:, 4:].flatten(0, 1), batch[:, :-4].flatten())

    def evaluate(self, model, processes):
        held_out = self.batch(0, -1, 0, 1)  # no training step has this number
        right = model(held_out)[:, 4:].argmax(-1) == held_out[:, :-4]
        return {"accuracy": 100 * right.float().mean().item()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="the folder of the run")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    torch.manual_seed(0)  # you initialise the weights
    recipe = Recipe(steps=given.steps, lr=1e-2, save_every=20, evaluate_every=100)
    print(train(Echo(), Repeat(), recipe, given.out))
    load_weights(Echo(), given.out)  # how to load the weights later
