"""Links out of docs/ (to examples, results, source) lead to the repository on the site, and to files in a checkout."""

from __future__ import annotations

import re
from typing import Any

OUT = re.compile(r"(\]\(|src=\")((?:\.\./)+)([^)\"\s]+)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    depth = page.file.src_uri.count("/")

    def moved(found: re.Match[str]) -> str:
        before, up, rest = found.groups()
        inside = up.count("../") <= depth
        return found.group(0) if inside else f"{before}{config.repo_url.rstrip('/')}/blob/main/{rest}"

    return OUT.sub(moved, markdown)
