"""A whole language model beside Hugging Face's Llama, which has RoPE; Llama with and without transport; the command.

    both     4 layers, 256 wide, 4 heads, 8,000 words, embedding tied; fp32, 5.2 million parameters
    ours     LayerNorm, GELU of width 1,024, scores and values transported by fixed frames
    theirs   RMSNorm, SwiGLU of width 680, RoPE on scores: LlamaForCausalLM with its own defaults (SDPA)

683 would make the parameters equal; 680 is within 0.2 % of that, a multiple of 8, and faster for them.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from joformer.bench.measure import Row, fastest
from joformer.integrations import transport_values
from joformer.models import JoFormerLM, LMConfig

Report = Callable[[str], None]

CONFIG = LMConfig(vocab=8000, dim=256, layers=4, heads=4, frames="fixed", transport="both")


def llama_of(config: LMConfig, width: int) -> Any:
    """Hugging Face's Llama of the same shape with a SwiGLU of `width`, or None where transformers is not installed.

    >>> llama = llama_of(LMConfig(vocab=50, dim=32, layers=1, heads=2), width=85)
    >>> llama is None or llama.config.intermediate_size
    85
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    shape = LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.dim,
        intermediate_size=width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        tie_word_embeddings=config.tied,
        rope_theta=config.base,
        # No token may end a text early: all are to be decoded.
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(shape)


def update(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward, backward and AdamW: one step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return run


def llama(repeats: int, say: Report) -> Iterator[Row]:
    """Tokens per second of training, 8 × 512 tokens a step, ours over theirs; both compute the loss themselves."""
    say("training step beside Llama")
    ours, theirs = JoFormerLM(CONFIG), llama_of(CONFIG, 680)
    if theirs is None:
        return
    tokens = torch.randint(CONFIG.vocab, (8, 513), generator=torch.Generator().manual_seed(0))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    steps = {
        "ours": update(ours, lambda: ours(x, targets=y)),
        "theirs": update(theirs, lambda: theirs(input_ids=x, labels=x, use_cache=False).loss),  # it shifts them itself
    }
    best = fastest(steps, max(3, repeats // 3))
    yield Row(
        "training step, tokens per second: JoFormerLM, both / Hugging Face Llama, SwiGLU of 680",
        best["theirs"] / best["ours"],
        1.1,
        higher=True,
    )


def generating(repeats: int, say: Report) -> Iterator[Row]:
    """Tokens per second of greedy decoding with caches, 128 after a prompt of 32, ours over theirs."""
    ours, theirs = JoFormerLM(CONFIG).eval(), llama_of(CONFIG, 680)
    if theirs is None:
        return
    theirs.eval()
    for batch, bar in ((1, 1.2), (8, None)):
        say(f"decoding beside Llama, batch {batch}")
        prompt = torch.randint(CONFIG.vocab, (batch, 32), generator=torch.Generator().manual_seed(0))
        options = {"max_new_tokens": 128, "do_sample": False, "use_cache": True}
        runs = {
            "ours": partial(ours.generate, prompt, 128, temperature=0),
            "theirs": partial(theirs.generate, prompt, attention_mask=torch.ones_like(prompt), **options),
        }
        best = fastest(runs, max(3, repeats // 3))
        yield Row(
            f"decoding, batch {batch}, tokens per second: JoFormerLM, both / Hugging Face generate",
            best["theirs"] / best["ours"],
            bar,
            higher=True,
        )


def transporting(repeats: int, say: Report) -> Iterator[Row]:
    """Hugging Face's Llama with its values transported against itself without: a training step, a decoded token."""
    say("value transport in Llama")
    plain = llama_of(CONFIG, 680)
    if plain is None:
        return
    both = {"plain": plain, "carried": transport_values(copy.deepcopy(plain))}
    tokens = torch.randint(CONFIG.vocab, (4, 512), generator=torch.Generator().manual_seed(0))

    def loss(model: Any) -> Tensor:
        return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    best = fastest({name: update(model, partial(loss, model)) for name, model in both.items()}, repeats)
    yield Row("Hugging Face Llama, training step: values transported / not", best["carried"] / best["plain"], 1.04)
    prompt = tokens[:1, :32]
    options = {"max_new_tokens": 64, "do_sample": False, "use_cache": True, "attention_mask": torch.ones_like(prompt)}
    for dim, bar in ((CONFIG.dim, 1.05), (3 * CONFIG.dim, None)):
        wide = replace(CONFIG, dim=dim, heads=CONFIG.heads * dim // CONFIG.dim)
        plain = llama_of(wide, 680 * dim // CONFIG.dim).eval()
        both = {"plain": plain, "carried": transport_values(copy.deepcopy(plain))}
        best = fastest({name: partial(model.generate, prompt, **options) for name, model in both.items()}, repeats)
        ratio = best["carried"] / best["plain"]
        yield Row(f"Hugging Face Llama, decoded token, {dim} wide: values transported / not", ratio, bar)


def starting(repeats: int, say: Report) -> Iterator[Row]:
    """Seconds from the shell to the help of the command, in a fresh process."""
    say("start")

    def fresh() -> None:
        subprocess.run([sys.executable, "-m", "joformer.cli", "--help"], check=True, capture_output=True)

    yield Row("seconds to start joformer --help", fastest({"help": fresh}, max(5, repeats // 4), warmup=1)["help"], 1.0)
