"""Journey operators: positional structure that composes along any number of axes, on scores and values."""
