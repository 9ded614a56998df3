"""Runs that never were: every kind of table the commands leave on disk, deterministic, in a moment."""

import json
import math
import random
import re
from pathlib import Path

MACHINE = {"processor": "Imaginary CPU @ 2.00GHz, AVX512", "cores": 2, "memory_gib": 24, "system": "Linux"}
VERSIONS = {"joformer": "0.1.0", "torch": "2.13.0", "python": "3.11.9"}
SIDES = [
    f"{side}, {frames}"
    for frames in ("fixed", "learned", "projected", "cumulative")
    for side in ("scores", "values", "both")
]


def slug(text):
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def curve(draw, steps, end, metric, higher):
    lines = []
    for step in range(10, steps + 1, 10):
        lines.append({"step": step, "train_loss": end + 3 * math.exp(-6 * step / steps) + draw.gauss(0, 0.04)})
        if step % 60 == 0:
            held = end * (1 - math.exp(-5 * step / steps)) if higher else end + 2.5 * math.exp(-6 * step / steps)
            lines.append({"step": step, "loss": held, metric: held})
    return lines


def result(table, model, size, seed, measured, draw, **more):
    name = "/".join(part for part in (table, slug(model), slug(size), f"seed-{seed}") if part)
    return {
        "cell": name,
        "table": table,
        "model": model,
        "seed": seed,
        "measured": measured,
        "parameters": 266_000 + 12 * len(model),
        "steps": 600,
        "seconds": 71.0 + seed,
        "step_ms": 118.2 * (1 + 0.004 * len(model)) + draw.gauss(0, 1),
        "config": {"dim": 64},
        "recipe": {"lr": 1e-3},
        "task": None,
        "command": f"joformer reproduce {table} --only {name}",
        "versions": VERSIONS,
        "machine": MACHINE,
        "finished": f"2026-11-1{seed % 9}T05:00:00Z",
        **more,
    }


def table(name, models, sizes, seeds, value, *, metric, higher=False, noise=0.01, own=0.004, **about):
    """The content of table.json and of its cells; `value(model index, size index)` is the truth behind them."""
    draw = random.Random(name)
    results = []
    luck = {(size, seed): draw.gauss(0, noise) for size in sizes for seed in range(seeds)}
    for i, model in enumerate(models):
        for j, size in enumerate(sizes):
            for seed in range(seeds):
                found = value(i, j) + luck[size, seed] + draw.gauss(0, own)
                measured = {size: {"loss": found, metric: found}}
                lines = curve(draw, 600, found, metric, higher)
                results.append(result(name, model, size, seed, measured, draw, curve=lines))
    head = {
        "name": name,
        "title": about.pop("title", name),
        "scale": "laptop",
        "data": "enwik8",
        "metric": metric,
        "unit": metric.replace("_", " "),
        "higher": higher,
        "skewed": False,
        "baseline": models[0],
        "reference": None,
        "models": models,
        "sizes": sizes,
        "pairs": [],
        "paper": {},
        "paper_metric": "",
        "paper_setting": "",
        "notes": [],
        "cells": [one["cell"] for one in results],
        **about,
    }
    return head, results


def wikipedia(seeds=5):
    paper = {
        "roformer": {"n100, L2": 7.24, "n200, L2": 5.82},
        "fixed": {"n100, L2": 6.67},
        "projected": {"n100, L2": 6.15},
    }
    return table(
        "wikipedia",
        ["roformer", "fixed", "learned", "projected"],
        ["n100, L2", "n200, L2"],
        seeds,
        lambda i, j: 1.9 - 0.2 * j - 0.009 * i,
        metric="bits_per_byte",
        title="Wikipedia language models",
        paper=paper,
        paper_metric="perplexity",
        paper_setting="full Wikipedia, BPE of 8,000, 200,000 steps, one seed",
        notes=["enwik8 in bytes instead of Wikipedia in BPE, so that perplexities cannot be set beside the paper's."],
    )


def cifar(seeds=3):
    return table(
        "cifar100",
        ["rope2d", "joformer_old", "monoidal_axial", "joformer_axial"],
        ["32", "64", "128"],
        seeds,
        lambda i, j: 40 + 6 * j + 0.8 * i,
        metric="accuracy",
        higher=True,
        noise=0.5,
        own=0.4,
        title="CIFAR-100",
        unit="% accuracy",
        data="cifar100",
        pairs=[["rope2d", "joformer_old"], ["monoidal_axial", "joformer_axial"]],
        paper={"rope2d": {"32": 50.91, "64": 59.23}, "joformer_axial": {"32": 52.77}},
        paper_metric="accuracy",
    )


def compare(seeds=4):
    head, results = table(
        "compare",
        ["none", *SIDES],
        [""],
        seeds,
        lambda i, j: 2.1 - 0.006 * i,
        metric="bits_per_byte",
        title="Your data: which side does the work",
        data="/data/novels.txt",
    )
    for one in results:
        one["measured"][""]["time_ratio"] = 1.0 if one["model"] == "none" else 1.03
    head["cells"].append("compare/both-cumulative/seed-9")
    return head, results


def length(seeds=5):
    head, _ = table(
        "length", ["rope", "fixed", "projected"], ["512", "1024", "2048", "4096"], 0, None, metric="perplexity"
    )
    draw, results = random.Random(7), []
    for i, model in enumerate(head["models"]):
        for seed in range(seeds):
            luck = draw.gauss(0, 0.02)
            measured = {}
            for j, size in enumerate(head["sizes"]):
                loss = 3.2 - 0.02 * i + (2 - i) * 0.35 * j + luck + draw.gauss(0, 0.02 + 0.05 * j)
                measured[size] = {"loss": loss, "perplexity": math.exp(loss)}
            lines = curve(draw, 600, 3.2, "perplexity", False)
            results.append(result("length", model, "", seed, measured, draw, curve=lines))
    head |= {
        "title": "Length generalization",
        "skewed": True,
        "unit": "perplexity",
        "cells": [r["cell"] for r in results],
    }
    head["paper"] = {"rope": {"512": 26.82, "1024": 41.90, "2048": 90.10, "4096": 168.67}}
    head |= {"paper_metric": "perplexity", "paper_setting": "trained at 512 tokens"}
    return head, results


def overhead(seeds=5):
    head, results = table(
        "overhead",
        ["fixed", "learned", "projected"],
        ["d = 64", "d = 128"],
        seeds,
        lambda i, j: 1.0 + 0.02 * i,
        metric="ratio",
        noise=0.0,
        own=0.01,
        title="Overhead",
        unit="× the time of a step",
        baseline=None,
        reference=1.0,
    )
    for one in results:
        for of in one["measured"].values():
            of |= {"ms": 100 * of["ratio"], "parameters": 5000}
        one |= {"curve": [], "step_ms": None, "seconds": None}
    return head, results


def one_seed():
    return table(
        "mnist", ["mlp", "learned", "dft"], [""], 1, lambda i, j: 95 - i, metric="accuracy", higher=True, title="MNIST"
    )


def write(out: Path, tables, missing=()):
    """The files as the commands would have left them."""
    for head, results in tables:
        place = out / head["name"] / "table.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(head))
        for one in results:
            if one["cell"] not in missing:
                cell = out / one["cell"] / "result.json"
                cell.parent.mkdir(parents=True, exist_ok=True)
                cell.write_text(json.dumps(one))
    return out


def everything():
    return [wikipedia(), cifar(), compare(), length(), overhead(), one_seed()]


def train_run(folder: Path, steps=40, finished=True):
    """The folder of one `joformer train`."""
    folder.mkdir(parents=True)
    run = {"seed": 3, "recipe": {"steps": steps, "lr": 1e-3}, "config": {"dim": 16}, "task": {"context": 16}}
    about = {"model": "JoFormerLM", "config": {"dim": 16}, "run": run, "notes": {"data": "stdlib"}}
    (folder / "config.json").write_text(json.dumps(about))
    lines = [{"step": s, "train_loss": 5 - s / 10, "lr": 0.1} for s in range(5, steps + 1, 5)]
    lines += [{"step": s, "loss": 4 - s / 20, "perplexity": 30.0, "bits_per_byte": 3 - s / 20} for s in (20, 40)]
    lines.sort(key=lambda line: line["step"])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "speed.jsonl").write_text(
        '{"step": 20, "seconds_per_step": 0.01}\n{"step": 40, "seconds_per_step": 0.03}\n'
    )
    if finished:
        (folder / "model.safetensors").write_bytes(b"")
    return folder
