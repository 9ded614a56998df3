"""What a source contributes to the description of a cell: what version 0.1 wrote is still recognised."""

import pytest
from runner import logged

from joformer.experiments import ImageSource, TextSource
from joformer.training import load_labelled, load_text

OLD = {
    TextSource("notes.txt"): {"data": "notes.txt", "vocab": 256, "context": 512, "batch": 32, "held_out": 200},
    ImageSource("pets"): {
        "data": "pets", "batch": 128, "augment": "none", "draw": "epochs", "cells": False, "stream": None,
        "label": None, "size": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("source", OLD, ids=lambda source: source.data)
def test_options_at_their_defaults_are_no_part_of_a_description(source):
    assert source.as_json() == OLD[source]


def test_options_that_are_given_are_described_and_noted():
    assert TextSource("a", column="b").as_json()["column"] == "b"
    sound = {"rate": 16000, "seconds": 2.0, "bands": 32, "hop": 8.0}
    source = ImageSource("a", label="name", **sound)
    assert sound.items() <= source.as_json().items()
    assert source.notes() == {"data": "a", "label": "name", "size": None, "stream": False, **sound}
    assert ImageSource("a", stream=64).notes()["size"] == 64


def test_what_was_understood_is_logged_once_where_the_parent_loads(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 99)
    said = []
    with logged(said):
        first = TextSource(str(tmp_path / "a.txt")).load()
        again = TextSource(str(tmp_path / "a.txt"), context=64).load()
    assert first is again
    assert [line for line in said if line.startswith("data: ")] == ["data: a.txt, text"]
    assert first.fingerprint == load_text(tmp_path / "a.txt", vocab=256).fingerprint
    assert ImageSource("words", bands=16).load().fingerprint == load_labelled("words", bands=16).fingerprint
