"""Examples in docstrings are shown as code: griffe knows `Examples:` and takes ours, `Example:` or bare, for text."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")


class BareExamples(griffe.Extension):
    """Renames the section, and fences doctests that are in none."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for everything that is documented."""
        if obj.docstring is not None:
            named = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", named)
