"""One report of runs: a page that needs nothing else, Markdown, JSON, and lines for a terminal.

gathered = results.gather(["out"])
html(gathered), markdown(gathered), as_json(gathered), lines(gathered)
"""

from joformer.experiments.report.page import html
from joformer.experiments.report.record import as_json
from joformer.experiments.report.text import lines, markdown, sentences

__all__ = ["as_json", "html", "lines", "markdown", "sentences"]
