"""Brackets and colons are legal in paths, in names and in what other libraries say."""

from __future__ import annotations

import io
import os

import pytest
from rich.table import Table

from jobs.display.tables import print_table
from vitssl.terminal import console

HOSTILE = ["runs/[/]", "[/red]", "[bold]name[/bold]", "a:smile:b", "[link=javascript:x]y[/link]", "\\[x]"]


def test_a_reader_that_has_left_is_an_error_like_any_other():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out, pytest.raises(BrokenPipeError):
        try:
            console(file=out).print("text")
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # for what is left in the buffer


@pytest.mark.parametrize("text", HOSTILE)
def test_text_comes_out_as_it_is(text):
    out = io.StringIO()
    screen = console(file=out, width=100)
    screen.print(text)
    table = Table("run", "state")
    table.add_row(text, "new")
    print_table(table, screen)
    first, *rest = out.getvalue().splitlines()
    assert first == text and any(text in line for line in rest)
