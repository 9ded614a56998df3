"""`python titan_on_cpu.py --module … --config …` is `python -m torchtitan.train …` where there is no accelerator.

torchtitan 0.3 takes for granted that there is one (its issue 1661): it names it and reads its memory. And it belongs to
torch 2.14, where a function that it calls after the first step got its public name. These are answered here; all else
is torchtitan's.
"""

import os
import sys
from pathlib import Path
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


if "torchtitan" not in sys.modules:  # which looks for its accelerator when it is imported
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda kind: processor
if not hasattr(torch.distributed, "set_timeout"):  # before torch 2.14
    torch.distributed.set_timeout = c10d._set_pg_timeout

from torchtitan.train import main


def run(rank, ranks, port, words, log):
    """One of the processes that torchrun would start, with its output in a file."""
    sys.stdout = sys.stderr = Path(log).open("w")  # noqa: SIM115
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv = ["train", *words]
    main()


if __name__ == "__main__":
    main()
