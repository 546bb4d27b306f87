"""Memory that is freed and asked for again."""

from __future__ import annotations

import subprocess
import sys

import pytest

# pages that the system had to map, in a hundred times the same 32 MB
FAULTS = """
import resource, torch
from vitssl.training import memory
if {keep}:
    assert memory.keep_freed()
torch.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    torch.ones(1 << 23) + 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_kept_memory_is_not_mapped_again():
    def faults(keep: bool) -> int:
        return int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], check=True, capture_output=True, text=True).stdout)

    assert 10 * faults(True) < faults(False)
