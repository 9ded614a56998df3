"""`python titan_on_cpu.py --module … --config …` is `python -m torchtitan.train …` where there is no accelerator.

torchtitan 0.3 takes for granted that there is one (its issue 1661): it names it and reads its memory. And it belongs to
torch 2.14, where a function that it calls after the first step got its public name. These are answered here; all else
is torchtitan's.
"""

import sys
from types import SimpleNamespace

import torch
import torch._utils
import torch.distributed.distributed_c10d as c10d

processor = SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in ("set_device", "device_count", "synchronize", "is_available")},
    current_device=lambda: 0,
    get_device_name=lambda device=None: "cpu",
    get_device_properties=lambda device=None: SimpleNamespace(total_memory=1 << 30),
    memory_stats=lambda device=None: {},
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
)


def use_the_processor():
    """Before the first import of torchtitan."""
    assert "torchtitan" not in sys.modules
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda kind: processor
    if not hasattr(torch.distributed, "set_timeout"):  # before torch 2.14
        torch.distributed.set_timeout = c10d._set_pg_timeout


if __name__ == "__main__":
    use_the_processor()
    from torchtitan.train import main

    main()
