"""python -m joformer: the command."""

from joformer.cli import main

main()
