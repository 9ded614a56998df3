"""timm: probing and patching its rotary vision transformers."""
