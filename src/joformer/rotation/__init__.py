"""The performance-critical operation: rotating tokens by their frames.

rotate              y_t = A_t x_t, or A_t⁻¹ x_t
convert_layout      reorder the entries of a head from one plane layout to the other
"""

from joformer.rotation._rotate import (
    convert_layout,
    is_plain,
    own_projection,
    rotate,
    rotate_packed_,
    unrotate_linear,
)

__all__ = ["convert_layout", "is_plain", "own_projection", "rotate", "rotate_packed_", "unrotate_linear"]
