"""A training program without torch, to test how jobs start, stop and go on: counts steps in a run folder.

Its checkpoint is `last.pt` with the number of steps; each attempt appends where it started to `starts.txt`. A run with seed 13
fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from vitssl import config

STEP_S = 0.1


def main(folder: Path) -> int:
    if (folder / "done.json").exists():
        return 0
    run = config.load(folder)
    (folder / "error.json").unlink(missing_ok=True)
    if run.init_from is not None:
        assert (Path(run.init_from) / "done.json").exists(), "started before its parent was done"
    if run.seed == 13:
        (folder / "error.json").write_text(json.dumps({"message": "thirteen is unlucky", "time": time.time()}))
        return 1
    checkpoint = folder / "last.pt"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with (folder / "starts.txt").open("a") as file:
        file.write(f"{step}\n")
    while step < run.loop.max_steps:
        if os.path.exists(os.environ["VITSSL_STOP_FILE"]):
            return 75
        time.sleep(STEP_S)
        step += 1
        partial = folder / "last.partial"
        partial.write_text(str(step))
        partial.replace(checkpoint)
    (folder / "done.json").write_text(json.dumps({"step": step}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
