"""A training program without torch: takes `loop.max_steps` steps of 0.05 s. Seed 13 fails; a request to stop is heard."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from vitssl import config


def main(folder: Path) -> int:
    run = config.load(folder)
    with (folder / "starts.txt").open("a") as file:
        file.write(os.environ["PYTHONPATH"].split(os.pathsep)[0] + "\n")
    if run.seed == 13 and run.objectives.mae is not None:
        (folder / "error.json").write_text(json.dumps({"message": "thirteen is unlucky", "time": time.time()}))
        return 1
    checkpoint = folder / "last.pt"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while step < run.loop.max_steps:
        if os.path.exists(os.environ["VITSSL_STOP_FILE"]):
            return 75
        time.sleep(0.05)
        step += 1
        checkpoint.write_text(str(step))
    (folder / "done.json").write_text(json.dumps({"step": step, "test": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
