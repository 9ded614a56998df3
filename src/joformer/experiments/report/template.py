"""Shared by all pages: style, macros for plots and tables, and a policy that forbids loading or running anything.

All pages extend base.html; jinja2 escapes all text that comes from files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from joformer.experiments.report.columns import LEFT

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """A page from a template, which extends base.html.

    >>> render(HERE / "base.html")[:15]
    '<!doctype html>'
    """
    from markupsafe import Markup

    style = (HERE / "style.css").read_text(encoding="utf-8")
    made = _environment(template.parent).get_template(template.name)
    return made.render(policy=Markup(POLICY), style=Markup(style), left=LEFT, **values)


@cache
def _environment(folder: Path) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader([folder, HERE]), autoescape=True, undefined=StrictUndefined)
