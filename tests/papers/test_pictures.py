"""Pictures of systems: well-formed, told in words, and stored as they are drawn."""

import importlib.util
import sys
from xml.etree import ElementTree

import pytest

from fedlib import paths

DRAWN = importlib.util.spec_from_file_location("pictures", paths.ROOT / "docs" / "pictures.py")
pictures = sys.modules["pictures"] = importlib.util.module_from_spec(DRAWN)
DRAWN.loader.exec_module(pictures)
Client, Picture, PICTURES = pictures.Client, pictures.Picture, pictures.PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_stored_picture_is_the_one_that_is_drawn(name):
    svg = PICTURES[name].svg()
    assert (paths.ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == svg
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == PICTURES[name].alt


def test_what_is_left_out_is_faint_and_what_does_not_travel_has_no_arrow():
    told = Picture("<A>", "e1", [Client("data x", "e1", "-e1"), Client("x", "e1")], "said")
    svg = told.svg()
    assert svg.count('opacity="0.3"') == 2 and "&lt;A&gt;" in svg
    assert svg.count('Z" fill="#222222"') == 3, "the tips of three arrows"
    assert ">local expert<" in svg and ">left out<" in svg and ">gate<" not in svg, "the key"


def test_an_unknown_thing_is_refused():
    with pytest.raises(KeyError, match="spoon"):
        Picture("A", "spoon", [], "said").svg()
