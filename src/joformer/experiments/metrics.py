"""What is measured: the name, unit and direction of every metric, how seeds are averaged, what counts as no difference.

    scale      mean and difference                                interval
    linear     arithmetic mean, x − y                             Student's t
    percent    arithmetic mean, x − y in points                   t on the logit of the mean: inside 0 … 100
    log        geometric mean (perplexity: median), x / y         t on logarithms (median: least and most)

`delta` is the largest difference that is called none (on the log scale the largest factor): two models are equivalent
within it where two one-sided tests say so. It is a choice, stated wherever the word is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Scale = Literal["linear", "percent", "log"]


@dataclass(frozen=True)
class Metric:
    """A metric of the registry, or one that a file describes.

    >>> METRICS["accuracy"].difference_unit, METRICS["perplexity"].null
    ('points', 1.0)
    """

    name: str
    unit: str
    higher: bool = False
    scale: Scale = "linear"
    delta: float | None = None
    median: bool = False

    @property
    def label(self) -> str:
        """What is measured, in which unit; the unit alone where it says both."""
        return (
            self.unit
            if any(letter.isalpha() for letter in self.unit)
            else f"{self.name}, {self.unit}".replace("_", " ")
        )

    @property
    def difference_unit(self) -> str:
        """The unit of differences: between percentages they are points, between logarithms factors."""
        return {"percent": "points", "log": "×"}.get(self.scale, self.unit)

    @property
    def log(self) -> bool:
        """Whether differences are ratios."""
        return self.scale == "log"

    @property
    def null(self) -> float:
        """What no difference would be."""
        return 1.0 if self.log else 0.0

    @property
    def best(self) -> float | None:
        """The best value that there can be; None where there is no bound.

        >>> METRICS["accuracy"].best, METRICS["bits_per_byte"].best
        (100.0, None)
        """
        return None if self.scale != "percent" else 100.0 if self.higher else 0.0

    @property
    def margin(self) -> str:
        """`delta` in words.

        >>> METRICS["accuracy"].margin, METRICS["perplexity"].margin
        ('1 point', '1 %')
        """
        assert self.delta is not None
        unit = self.difference_unit.removesuffix("s" if self.delta == 1 else "-")
        return f"{100 * (self.delta - 1):.3g} %" if self.log else f"{self.delta:g} {unit}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("bits_per_byte", "bits per byte", delta=0.01),
        Metric("accuracy", "%", higher=True, scale="percent", delta=1.0),
        Metric("top_5", "% in the best five", higher=True, scale="percent", delta=1.0),
        Metric("accuracy_shifted", "% where shifted", higher=True, scale="percent", delta=1.0),
        Metric("accuracy_rotated", "% where rotated", higher=True, scale="percent", delta=1.0),
        Metric("event_f1", "% F1 of events", higher=True, scale="percent", delta=1.0),
        Metric("precision", "% of firings right", higher=True, scale="percent", delta=1.0),
        Metric("recall", "% of events spotted", higher=True, scale="percent", delta=1.0),
        Metric("frame_accuracy", "% of times right", higher=True, scale="percent", delta=1.0),
        Metric("mrr", "% mean reciprocal rank", higher=True, scale="percent", delta=1.0),
        Metric("hits_1", "% ranked first", higher=True, scale="percent", delta=1.0),
        Metric("hits_3", "% in the first three", higher=True, scale="percent", delta=1.0),
        Metric("hits_10", "% in the first ten", higher=True, scale="percent", delta=1.0),
        *(
            Metric(f"test_{name}", f"% {words}, test split", higher=True, scale="percent", delta=1.0)
            for name, words in (
                ("mrr", "mean reciprocal rank"),
                ("hits_1", "ranked first"),
                ("hits_3", "in the first three"),
                ("hits_10", "in the first ten"),
            )
        ),
        Metric("picture_error", "squared error per picture", scale="log", delta=1.01),
        Metric("localised", "% of the wrong uses found", higher=True, scale="percent", delta=1.0),
        Metric("masked_accuracy", "% of hidden tokens", higher=True, scale="percent", delta=1.0),
        *(
            Metric(f"{name}_{k}", f"{words} at {k}", higher=True, scale="percent", delta=1.0)
            for name, words in (
                ("recall", "% recall"),
                ("to_text", "% of texts found"),
                ("to_image", "% of images found"),
            )
            for k in (1, 5, 10)
        ),
        Metric("perplexity", "perplexity", scale="log", delta=1.01, median=True),
        Metric("ratio", "× the time", scale="log", delta=1.03),
        Metric("loss", "nats", delta=0.01),
        Metric("hours", "hours", scale="log"),
    )
}
"""The registry; a run of `train` is judged by the first of these that it measured."""


def metric_of(about: Mapping[str, Any]) -> Metric:
    """The metric that a table.json names: that of the registry, or as the file describes it.

    >>> metric_of({"metric": "loss"}).unit, metric_of({"metric": "errors", "unit": "errors", "skewed": True}).scale
    ('nats', 'log')
    """
    name = str(about["metric"])
    if name in METRICS:
        return METRICS[name]
    unit, skewed = str(about.get("unit") or name.replace("_", " ")), bool(about.get("skewed"))
    scale: Scale = "log" if skewed else "percent" if unit.startswith("%") else "linear"
    return Metric(name, unit, bool(about.get("higher")), scale, median=skewed)
