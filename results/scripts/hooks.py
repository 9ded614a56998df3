"""Value transport by forward hooks and by mixed classes: ``taskset -c 1 python results/scripts/hooks.py 256 1200``.

A token decoded by a Llama of that width (4 layers, batch 1, one thread), the models in turn, ratios of each token's
times and their median. Result of 2026-11-17 on a busy machine, eight runs: hooks / classes 0.997, 1.001, 0.999, 1.001,
1.009 at 256 wide, 1.001, 0.989, 1.008 at 768; classes / untouched model 1.07 to 1.09 and 1.02 to 1.04.
"""

import copy
import statistics
import sys
import time
from threading import get_ident

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from joformer.integrations import transport_values
from joformer.integrations._journey import Step, Strength
from joformer.integrations.hf._probe import probe


def hooked(model):
    """The same as `transport_values(model)` for one token at a time, by hooks."""
    embeddings, attentions = probe(model, Strength(1.0))
    ((name, table),) = embeddings.items()
    model.get_submodule(name).register_forward_hook(
        lambda module, args, kwargs, pair: (*pair, Step(*pair, table.dim // 2, table.layout)), with_kwargs=True
    )
    for name, spec in attentions.items():
        at_value, at_output = {}, {}

        def take(module, args, kwargs, at_value=at_value, at_output=at_output):
            *pair, journey = kwargs["position_embeddings"]
            at_value[get_ident()] = at_output[get_ident()] = journey
            kwargs["position_embeddings"] = pair
            return args, kwargs

        def check(module, args, out, at_value=at_value, at_output=at_output):
            if at_value or at_output:
                raise RuntimeError("its values were not rotated")

        def values(module, args, y, at_value=at_value, heads=spec.heads):
            return at_value.pop(get_ident()).rotate_values(y, heads)

        def output(module, args, at_output=at_output, dim=spec.heads.dim):
            return (at_output.pop(get_ident()).rotate_output(args[0], dim),)

        attention = model.get_submodule(name)
        attention.register_forward_pre_hook(take, with_kwargs=True)
        attention.register_forward_hook(check, always_call=True)
        attention.get_submodule(spec.value).register_forward_hook(values)
        attention.get_submodule(spec.output).register_forward_pre_hook(output)
    return model


@torch.inference_mode()
def main(width=256, tokens=400):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    heads = width // 64
    shape = {"vocab_size": 8000, "hidden_size": width, "intermediate_size": 680 * width // 256, "num_hidden_layers": 4}
    plain = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=heads, num_key_value_heads=heads)).eval()
    models = {"plain": plain, "classes": transport_values(copy.deepcopy(plain)), "hooks": hooked(copy.deepcopy(plain))}
    ratios = {pair: [] for pair in (("classes", "plain"), ("hooks", "plain"), ("hooks", "classes"))}
    for at in range(tokens):
        if at % 100 == 0:
            token, caches = torch.zeros(1, 1, dtype=torch.long), {n: DynamicCache(config=plain.config) for n in models}
        order = [list(models)[(at + turn) % 3] for turn in range(3)][:: 1 if at // 3 % 2 else -1]
        took, out = {}, {}
        for name in order:
            start = time.perf_counter()
            out[name] = models[name](token, past_key_values=caches[name]).logits
            took[name] = time.perf_counter() - start
        assert torch.allclose(out["classes"], out["hooks"], atol=1e-4)
        token = out["plain"].argmax(-1)
        for pair, found in ratios.items():
            found.append(took[pair[0]] / took[pair[1]])
    for (a, b), found in ratios.items():
        print(f"{a} / {b}: {statistics.median(found):.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
