"""Models by the names people use: "RoPE", "RoPE + values". Identifiers stay in files and folders.

A model that rotates is angles and sides; adding the values to the scores at the same angles is the effect that this
project is about, and has the same name in every table.
"""

from __future__ import annotations

from typing import NamedTuple

from joformer.models import VARIANTS

ANGLES = {
    "fixed": "RoPE", "learned": "learned RoPE", "projected": "projected RoPE", "cumulative": "cumulative RoPE",
    "dense": "dense rotations", "tree": "tree frames", "tree-dense": "dense tree frames",
}  # fmt: skip
"""What frames are called where they act on the scores alone."""
SIDES = {"scores": "", "both": " + values", "values": ", values only"}


class Rotating(NamedTuple):
    """A model that rotates: by which angles, on which sides of attention."""

    angles: str
    sides: str
    more: str = ""

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{ANGLES[self.angles]}{SIDES[self.sides]}{self.more}"


_LANGUAGE = {
    "rope": Rotating("fixed", "scores"),
    "roformer": Rotating("fixed", "scores"),
    "values only": Rotating("fixed", "values"),
    "fixed": Rotating("fixed", "both"),
    "learned": Rotating("learned", "both"),
    "projected on fixed": Rotating("projected", "both"),
    "cumulative": Rotating("cumulative", "both"),
}
_VISION = {"none": "no positions", "learned": "additive embedding"} | {
    name: Rotating(
        row.frames,
        row.transport,
        f"{', ' + row.split + ' axes' if row.split != 'axial' else ''}{', per layer' if row.per_layer else ''}",
    )
    for name, row in VARIANTS.items()
    if row.frames in ANGLES
}
_ADDED = {"alibi": "ALiBi", "shaw": "Shaw's clipped distances", "shiv-quirk": "Shiv and Quirk's code, added"}
_GRID = {"none": "no positions", **_ADDED} | {
    f"{sides}, {frames}": Rotating(frames, sides)
    for frames in ("fixed", "learned", "projected", "cumulative", "tree", "tree-dense")
    for sides in SIDES
}
_ON_THE_GRID = (
    "transport", "separation", "compare", "cost", "sizes", "rates", "spotting", "trees", "video-next", "video-class",
)  # fmt: skip
MODELS: dict[str, dict[str, str | Rotating]] = {
    "mnist": {
        "learned": "learned frequencies",
        "dft": "DFT, lowest frequencies",
        "diagonal": "DFT as printed (diagonal)",
        "mlp": "MLP on the pixels",
    },
    "relations": {"planes": "RotatE, planes", "blocks of 4": "rotations in blocks of 4"},
    **{
        name: {**_GRID, "coordinates": "coordinates as input", "polar": "RoPE + values, polar"}
        for name in ("points", "points-ink")
    },
    "pairs": {
        **_GRID,
        **{
            f"{sides}, fixed, {journeys}": Rotating("fixed", sides, f", {words}")
            for sides in SIDES
            for journeys, words in (("shared", "shared axes"), ("off", "no journeys"))
        },
    },
    "wikipedia": {**_LANGUAGE, "projected": "projected angles as printed"},
    **{
        name: {
            **_LANGUAGE,
            "rope, yarn": "RoPE, YaRN",
            "projected": Rotating("projected", "both", ", late"),
            "projected from scratch": Rotating("projected", "both"),
            "none": "no positions",
        }
        for name in ("length", "length-150k")
    },
    "hierarchy": {
        **_GRID,
        "linear attention, scores": "linear attention, RoPE",
        "linear attention, both": "linear attention, RoPE + values",
        "linear ssm": "linear SSM",
        "selective ssm": "selective SSM",
    },
    **{name: {**_VISION} for name in ("cifar100", "cifar100-liere", "imagenet", "speech", "overhead")},
    **{name: {**_GRID} for name in _ON_THE_GRID},
}
"""The models of each table by their identifiers."""


def plain(recipe: str, model: str) -> str:
    """The name of a model in tables of this recipe; the identifier where it has no other.

    >>> plain("cifar100", "joformer_axial"), plain("compare", "scores, fixed"), plain("mine", "rope2d")
    ('learned RoPE + values', 'RoPE', 'rope2d')
    """
    known = MODELS.get(recipe, {}).get(model, model)
    return known.name if isinstance(known, Rotating) else known


def value_effect(recipe: str, model: str, other: str | None) -> str:
    """What `other` is called, where `model` is the same with its values transported as well; else nothing.

    >>> value_effect("cifar100", "joformer_axial", "monoidal_axial"), value_effect("cifar100", "none", "rope2d")
    ('learned RoPE', '')
    """
    mine, theirs = (MODELS.get(recipe, {}).get(name or "") for name in (model, other))
    if not isinstance(mine, Rotating) or not isinstance(theirs, Rotating):
        return ""
    return theirs.name if theirs.sides == "scores" and mine == theirs._replace(sides="both") else ""
