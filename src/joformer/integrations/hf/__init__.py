"""Hugging Face transformers: probing and patching its models, saving them, and our models behind its interface."""
