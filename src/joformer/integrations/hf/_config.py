"""Configurations of our models in transformers: the fields of `LMConfig` and `ViTConfig`, and its own.

    ours       vocab        dim           layers              heads                 hidden              window
    theirs     vocab_size   hidden_size   num_hidden_layers   num_attention_heads   intermediate_size   sliding_window

Either name is read and set; `base` is `rope_parameters["rope_theta"]`, as version 5 has it; `classes` are `num_labels`.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from joformer.models import LMConfig, Variant, ViTConfig

WIDTHS = {
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden",
}
KINDS = {
    # within a window, cumulative
    (False, False): "full_attention",
    (True, False): "sliding_attention",
    (False, True): "hybrid",
    (True, True): "hybrid_sliding",
}


class _Config(PreTrainedConfig):
    """The fields of one of our configurations, by their names, and the rotary base where transformers keeps it."""

    # A configuration of transformers takes any keyword, whatever its signature: no run-time check against that.
    __no_type_check__ = True
    ours: ClassVar[type] = LMConfig
    dim: int = 1
    hidden: int | None = None
    rope_parameters: dict[str, Any] | None = None
    results: dict[str, dict[str, Any]] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        base = kwargs.pop("base", None)
        if base is not None:
            self.rope_parameters = {**(self.rope_parameters or {}), "rope_theta": float(base)}
        super().__post_init__(**kwargs)
        for name in ("frames", "shape", "patch"):  # JSON has lists
            if isinstance(getattr(self, name, None), list):
                setattr(self, name, tuple(getattr(self, name)))
        if self.hidden is None:
            self.hidden = 4 * self.dim
        self.to_joformer()  # raises where it is no configuration of ours

    def to_joformer(self) -> Any:
        """The same as our own configuration."""
        rope = self.rope_parameters or {}
        if rope.get("rope_type", "default") != "default" or "rope_theta" not in rope:
            raise ValueError(f"rope_parameters must be {{'rope_type': 'default', 'rope_theta': base}}, got {rope}")
        others = {"base": float(rope["rope_theta"]), "classes": self.num_labels}
        names = [field.name for field in fields(self.ours) if field.name in others or hasattr(self, field.name)]
        return self.ours(**{name: others[name] if name in others else getattr(self, name) for name in names})

    @classmethod
    def from_joformer(cls, config: Any, **changes: Any) -> Any:
        """Our configuration as one of transformers; `changes` are other fields.

        >>> JoFormerConfig.from_joformer(LMConfig(vocab=50, dim=32), eos_token_id=3).to_joformer().dim
        32
        >>> JoFormerViTConfig.from_joformer(ViTConfig(classes=3), id2label={0: "a", 1: "b", 2: "c"}).id2label[2]
        'c'
        """
        return cls(**{field.name: getattr(config, field.name) for field in fields(config)}, **changes)


class JoFormerConfig(_Config):
    """Configuration of `JoFormerForCausalLM`: every field of `LMConfig`, under its own name or the one in transformers.

    `results`, name → {metric: value}, fill the table of the model card.

    >>> config = JoFormerConfig(vocab_size=50, hidden_size=32, layers=3, heads=2, pattern="WWN", window=8, base=500)
    >>> config.vocab, config.num_hidden_layers, config.rope_parameters["rope_theta"], config.to_joformer().letters
    (50, 3, 500.0, 'WWN')
    >>> config.layer_types
    ['sliding_attention', 'sliding_attention', 'full_attention']
    """

    model_type = "joformer"
    ours: ClassVar[type] = LMConfig
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        **WIDTHS,
        "vocab_size": "vocab",
        "sliding_window": "window",
        "tie_word_embeddings": "tied",
    }

    vocab: int = 8000
    dim: int = 256
    layers: int = 4
    heads: int = 4
    frames: str | tuple[str, ...] | list[str] = "fixed"
    projected_base: str = "fixed"
    transport: str = "both"
    pattern: str = "F"
    window: int | None = None
    tied: bool = True
    dropout: float = 0.0
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    # For transformers' caches and masks, from the pattern; `hybrid` layers keep a state beside keys and values: the
    # angle that cumulative frames have reached.
    layer_types: list[str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.layer_types = None
        super().__post_init__(**kwargs)
        config = self.to_joformer()
        if beyond := set(config.letters) - set("FWN"):
            raise ValueError(
                f"pattern {self.pattern!r}: transformers' caches and masks are for F, W and N, not for "
                f"{', '.join(sorted(beyond))}; use JoFormerLM itself"
            )
        transports = config.transport != "none"
        self.layer_types = [
            KINDS[letter == "W", transports and letter != "N" and name == "cumulative"]
            for letter, name in zip(config.letters, config.names, strict=True)
        ]


class JoFormerViTConfig(_Config):
    """Configuration of `JoFormerForImageClassification`: every field of `ViTConfig`; `num_labels` are its classes.

    >>> config = JoFormerViTConfig(shape=(8, 8), patch=(4, 4), channels=1, dim=32, layers=2, heads=2, num_labels=10)
    >>> config.hidden_size, config.num_channels, config.to_joformer().classes, config.to_joformer().grid
    (32, 1, 10, (2, 2))
    """

    model_type = "joformer_vit"
    ours: ClassVar[type] = ViTConfig
    default_theta = 100.0
    attribute_map: ClassVar[dict[str, str]] = {
        **WIDTHS,
        "num_channels": "channels",
        "image_size": "shape",
        "patch_size": "patch",
    }

    frames: str | None = None
    split: str | None = None
    transport: str | None = None
    per_layer: bool | None = None
    shape: tuple[int, ...] | list[int] = (224, 224)
    patch: tuple[int, ...] | list[int] = (16, 16)
    channels: int = 3
    dim: int = 384
    layers: int = 12
    heads: int = 6
    pool: str = "cls"
    registers: int = 0
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        classes = kwargs.pop("classes", None)
        if classes is not None:
            kwargs["num_labels"] = classes
        # A name, which is all that version 0.1 wrote, is short for four fields; those given beside it override it.
        given: Any = {field.name: getattr(self, field.name) for field in fields(Variant)}
        given = {name: value for name, value in given.items() if value is not None}
        for name, value in asdict(ViTConfig(model=kwargs.pop("model", None), **given).variant).items():
            setattr(self, name, value)
        super().__post_init__(**kwargs)
