"""Attention whose scores and values travel."""

from joformer.attention.cache import JourneyCache
from joformer.attention.functional import journey_attention
from joformer.attention.module import JourneyAttention
from joformer.attention.window import window_attention

__all__ = ["JourneyAttention", "JourneyCache", "journey_attention", "window_attention"]
