"""An analysis stands in every list that wants it: the places that vitssl/docs/contributing.md names."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitssl import analysis, cli
from vitssl.report.figures.analyses import DRAWN, FIGURE_PER_IMAGE_SET, FIGURE_PER_RUN
from vitssl.report.results import analyses


def test_every_list_has_every_analysis(capsys) -> None:
    assert analysis.KINDS.keys() == analyses.KINDS.keys() == DRAWN.keys() >= {*FIGURE_PER_RUN, *FIGURE_PER_IMAGE_SET}
    with pytest.raises(SystemExit):
        cli.main(["analyze", "--help"])
    assert "{" + ",".join(analysis.KINDS) + "}" in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", analyses.KINDS)
def test_files_are_told_apart_by_their_names(monkeypatch, name: str) -> None:
    """Also those of other weights and checkpoints, and where one name begins with another."""
    monkeypatch.setitem(analyses.KINDS, "tokens-norms", analyses.KINDS["tokens"])
    for stem in (name, f"{name}-ema", f"{name}-teacher-epoch-0010"):
        assert analyses.kind_of(Path(f"{stem}.json")) == name
    assert analyses.kind_of(Path("tokens-norms-best.json")) == "tokens-norms" and analyses.kind_of(Path(f"{name}s.json")) is None
