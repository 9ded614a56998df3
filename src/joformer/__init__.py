"""Journey operators for PyTorch."""
