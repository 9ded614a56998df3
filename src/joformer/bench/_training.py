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

from joformer._log import logger
from joformer.bench._measure import Effort, Pair, Row, Run, compare, fastest, ratio, take_turns, timed
from joformer.bench._place import CPU, Place
from joformer.integrations import transport_values
from joformer.models import JoFormerLM, LMConfig

CONFIG = LMConfig(vocab=8000, dim=256, layers=4, heads=4, frames="fixed", transport="both")
GENERATED = 128
"""Tokens that a text decoded has after its prompt."""


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


def _words(batch: int, tokens: int) -> Tensor:
    return torch.randint(CONFIG.vocab, (batch, tokens), generator=torch.Generator().manual_seed(0))


def llama(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """Tokens per second of training, 8 × 512 tokens per step, ours over theirs; both compute the loss themselves."""
    logger.info("training step next to Llama")
    ours, theirs = JoFormerLM(CONFIG), llama_of(CONFIG, 680)
    if theirs is None:
        return
    for model in (ours, theirs):
        model.to(at.device, at.dtype)
    tokens = _words(8, 513).to(at.device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    our_step = update(ours, lambda: ours(x, targets=y))
    # Llama shifts its labels itself.
    their_step = update(theirs, lambda: theirs(input_ids=x, labels=x, use_cache=False).loss)
    name = "training step, tokens per second: JoFormerLM, both / Hugging Face Llama, SwiGLU of 680"
    yield compare(name, their_step, our_step, effort, 1.1, higher=True)


def generating(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """Tokens per second of greedy decoding with caches, 128 after a prompt of 32, ours over theirs."""
    ours, theirs = JoFormerLM(CONFIG).eval(), llama_of(CONFIG, 680)
    if theirs is None:
        return
    ours.to(at.device, at.dtype)
    theirs.eval().to(at.device, at.dtype)
    for batch, bar in ((1, 1.2), (8, None)):
        logger.info(f"decoding next to Llama, batch {batch}")
        prompt = _words(batch, 32).to(at.device)
        our_text = partial(ours.generate, prompt, GENERATED, temperature=0)
        name = f"decoding, batch {batch}, tokens per second: JoFormerLM, both / Hugging Face generate"
        yield compare(name, _decoding(theirs, prompt, GENERATED), our_text, effort, bar, higher=True)


def _decoding(llama: Any, prompt: Tensor, tokens: int) -> Run:
    mask = torch.ones_like(prompt)
    return partial(llama.generate, prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, use_cache=True)


def transporting(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """Hugging Face's Llama with its values transported against itself without: a training step, a decoded token.

    A token is decoded at full strength, at strength 0.5 and, where the processor has them, with bfloat16 numbers.
    """
    plain = llama_of(CONFIG, 680)
    if plain is None:
        return
    logger.info("value transport in Llama, training step")
    plain.to(at.device, at.dtype)
    tokens = _words(4, 512).to(at.device)

    def step(model: Any) -> Callable[[], None]:
        return update(model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss)

    name = "Hugging Face Llama, training step: values transported / not"
    yield compare(name, step(transport_values(copy.deepcopy(plain))), step(plain), effort, 1.04)

    half_precision = at.device.type != "cpu" or bfloat16_works()
    if not half_precision:
        logger.info(
            "no bfloat16 products (illegal instruction), rows left out: set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )
    full, half = ("values transported", 1.0), ("values at strength 0.5", 0.5)
    for dim, first, second in ((CONFIG.dim, 1.05, 1.1), (3 * CONFIG.dim, None, 1.05)):
        wide = replace(CONFIG, dim=dim, heads=CONFIG.heads * dim // CONFIG.dim)
        plain = llama_of(wide, 680 * dim // CONFIG.dim).eval()
        for dtype, bars in ((torch.float32, {full: first, half: second}), (torch.bfloat16, {full: second})):
            kind = "bf16, " if dtype == torch.bfloat16 else ""
            if kind and not half_precision:
                continue
            logger.info(f"value transport in Llama, decoding, {kind}{dim} wide")
            models = {"plain": plain.to(at.device, dtype)}
            for variant, strength in bars:
                models[variant] = transport_values(copy.deepcopy(plain), strength=strength)
            texts = {name: _decoding(model, tokens[:1, :32], GENERATED // 2) for name, model in models.items()}
            runs = {name: timed(text, effort.clock) for name, text in texts.items()}
            pairs: dict[Pair, float | None] = {(variant, "plain"): bar for (variant, _), bar in bars.items()}
            for (variant, _), logs in take_turns(runs, pairs, effort).items():
                name = f"Hugging Face Llama, decoded token, {kind}{dim} wide: {variant} / not"
                yield Row.of(name, ratio(logs), pairs[variant, "plain"])


def bfloat16_works() -> bool:
    """Whether a product of bfloat16 matrices works: where AMX is announced and missing, it kills the process.

    >>> isinstance(bfloat16_works(), bool)
    True
    """
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def starting(effort: Effort) -> Iterator[Row]:
    """Seconds from the shell to the help of the command, in a fresh process."""
    logger.info("start")

    def fresh() -> None:
        subprocess.run([sys.executable, "-m", "joformer.cli", "--help"], check=True, capture_output=True)

    repeats = min(effort.rounds, 10)
    yield Row("seconds to start joformer --help", fastest({"help": fresh}, repeats, warmup=1)["help"], 1.0)
