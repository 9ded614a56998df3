"""python -m joformer.cli: what `torchrun -m` and `accelerate launch -m` start."""

from joformer.cli import main

main()
