"""The page of hyper-parameters is what the code has, and a value that departs from the paper does not go unsaid."""

import importlib.util
from pathlib import Path

import pytest

from joformer import paper

PLACE = Path(__file__).resolve().parents[1] / "docs" / "list_hyperparameters.py"


@pytest.fixture(scope="module")
def lister():
    spec = importlib.util.spec_from_file_location("list_hyperparameters", PLACE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_has(lister, monkeypatch):
    page = lister.page()
    assert lister.PAGE.read_text(encoding="utf-8") == page, "run python docs/list_hyperparameters.py"
    # Every value that the paper states has its line, in the table it belongs to.
    for table, stated in paper.STATED.items():
        section = page.partition(f"## {table}: ")[2].partition("\n## ")[0]
        for name, value in stated.items():
            assert f"| {name} | {value} | " in section
    # One that departs from it needs a reason.
    changed = {**paper.STATED["wikipedia"], "weight decay": "0.1"}
    monkeypatch.setitem(paper.STATED, "wikipedia", changed)
    with pytest.raises(
        SystemExit, match=r"wikipedia, weight decay: the paper states 0\.1, the code has 0\.01: say why"
    ):
        lister.page()
