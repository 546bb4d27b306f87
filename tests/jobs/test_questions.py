"""What is said when the training environment cannot answer."""

from __future__ import annotations

import sys

import pytest

from jobs.plan import questions
from vitssl.config import Site
from vitssl.version import ROOT


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from vitssl import words; words.counted('three', 'arm')", r"^ValueError: .* \(vitssl/words\.py:\d+\)$"),
        (
            f"exec(compile('from vitssl import words; words.counted(chr(97), chr(97))', '{ROOT}/.venv/lib/torch.py', 'exec'))",
            r"\(vitssl/words\.py:\d+\)$",
        ),
        (f"exec(compile('1 / 0', '{ROOT}/.venv/lib/torch.py', 'exec'))", "^ZeroDivisionError: division by zero$"),
        ("import json; json.loads('')", r"^json\.decoder\.JSONDecodeError: .*\(char 0\)$"),
        ("import sys; print('note: x\\nerror: a field is wrong', file=sys.stderr); sys.exit(2)", "^a field is wrong$"),
        ("import sys; sys.exit(1)", "^no message$"),
    ],
)
def test_a_failure_is_its_last_line_and_of_a_traceback_its_place_in_our_source(monkeypatch, code: str, said: str) -> None:
    """Somebody's new objective failed with "KeyError: 'local'", and nothing told where."""
    monkeypatch.setattr(questions, "cli_command", lambda *_: [sys.executable, "-c", code])
    with pytest.raises(questions.Refused, match=said):
        questions.command_output(["cost"], Site())
