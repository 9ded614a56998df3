"""Compiles the rotation kernel, in bf16, for GPUs that are not here: prints registers per thread and bytes spilled."""

import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from joformer.rotation import _triton


def resources(target, head_dim, half, angles, home):
    kernel, planes = _triton.rotate_kernel, head_dim // 2
    constants = {
        "INTERLEAVED": not half,
        "INVERSE": angles,
        "ANGLES": angles,
        "HOME": home,
        "PLANES": planes,
        "PADDED": planes,
        "WIDE": 1,
        "BLOCK": max(1, _triton.TILE // planes),
        "UNIT_PLANE": 1 if half else 2,
        "UNIT_SIDE": 4096 * planes if half else 1,
    }
    for at in range(3):
        there = at == 0 or not home
        constants |= {f"DIM{at}": head_dim * there, f"ROTATED{at}": there, f"COPIED{at}": False}
    types = {
        name: "constexpr"
        if name in constants
        else "*fp32"
        if name in ("unit", "angles")
        else "*bf16"
        if re.fullmatch(r"(x|y|result)[0-9]|home", name)
        else "i32"
        for name in kernel.arg_names
    }
    aligned = [
        i
        for i, name in enumerate(kernel.arg_names)
        if types[name][0] == "*" or name.endswith(("_row", "_token", "_head"))
    ]
    source = ASTSource(
        kernel, signature=types, constexprs=constants, attrs={(i,): [["tt.divisibility", 16]] for i in aligned}
    )
    made = triton.compile(source, target=target, options={"num_warps": 4})
    if target.backend == "hip":
        text = made.asm["amdgcn"]
        names = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
        registers, spilled, private = (int(re.search(rf"\.{name}:\s*([0-9]+)", text)[1]) for name in names)
        return registers, spilled + private
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{name}:([0-9]+)", text)[1]) for name in ("REG", "STACK", "LOCAL"))
    return registers, stack + local


targets = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
kinds = {"plain": (False, False), "angles": (True, False), "output": (True, True)}
for name, target in targets.items():
    for head_dim in (64, 128, 256):
        for half in (True, False):
            for kind, (angles, home) in kinds.items():
                layout = "half" if half else "interleaved"
                print(name, head_dim, layout, kind, *resources(target, head_dim, half, angles, home))
