"""300 mutations of what people and enemies may give; `python -m tests.fuzz 10000` tries more."""

from __future__ import annotations

import warnings

import pytest

from tests import fuzz


@pytest.mark.release
def test_mutations_are_accepted_or_refused_in_a_line(tmp_path):
    accepted = refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of damaged metadata
        for name, (content, target, changes) in fuzz.targets(tmp_path).items():
            count = 3 if name == "mat" else 13  # each is read in a process of its own
            counts, wrong = fuzz.run(name, content, target, count, changes)
            assert not wrong, f"{name}: {wrong[0][1]}"
            accepted, refused = accepted + counts["accepted"], refused + counts["refused"]
    assert accepted + refused >= 300 and min(accepted, refused) > 40
