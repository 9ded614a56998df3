"""python -m joformer.cli: what `torchrun -m` starts."""

from joformer.cli import main

main()
