"""Attention with journeys on scores and values."""

from joformer._parallel import ContextParallel
from joformer.attention._cache import JourneyCache
from joformer.attention._functional import journey_attention
from joformer.attention._module import JourneyAttention
from joformer.attention._window import window_attention

__all__ = ["ContextParallel", "JourneyAttention", "JourneyCache", "journey_attention", "window_attention"]
