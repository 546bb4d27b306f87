"""The JSON records of run folders, damaged."""

from __future__ import annotations

import pytest

from vitssl.config import ConfigError
from vitssl.files import read_events, read_json


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b"[" * 100_000, b""])
def test_a_damaged_record_is_one_line_that_names_it(tmp_path, content):
    (tmp_path / "done.json").write_bytes(content)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"event": "start"}\n' + (content or b"x") + b"\n")
    for read, name in ((read_json, "done.json"), (read_events, "metrics.jsonl")):
        with pytest.raises(ConfigError, match=rf"{name}: damaged, not .*; restore it from a backup, or delete it$") as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)
