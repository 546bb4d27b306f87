"""A training program without torch, to test how jobs start, stop and go on: takes `loop.max_steps` steps, one every 0.1 s.

Its checkpoint is `last.pt` with the number of steps; each attempt appends to `starts.txt` the step and the source that it began
with. A pretraining with seed 13 fails, unless its sweep's folder has a file `lucky`. A request to stop is heard between steps. After
HELD_AT steps it waits as long as its sweep's folder has a file `hold`. A trained run is evaluated, an evaluator every 0.1 s; each
attempt appends to `evaluations.txt` what it has to do, and waits like that once there is a result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from vitssl import config
from vitssl.config.evals import pending
from vitssl.files import read_json, write_json
from vitssl.training.stopping import is_stop_requested

STEP_S = 0.1
HELD_AT = 3
COST = {
    "params_train": 2, "params_inference": 1, "activations_inference": 3, "macs_train_forward": 5, "macs_train_step": 15,
    "macs_inference": 4,
    "macs_passes": {"classify": 5}, "inference_images_per_s": 10.0, "inference_device": "cpu",
    "inference_batch_size": 1, "precision": "fp32",
}  # fmt: skip


def main(folder: Path) -> int:
    run = config.load(folder)
    if (folder / "done.json").exists():
        return evaluate(folder, run)
    (folder / "error.json").unlink(missing_ok=True)
    if run.init_from is not None:
        assert (Path(run.init_from) / "done.json").exists(), "started before its parent was done"
    if run.seed == 13 and run.objectives.mae is not None and not (folder.parent / "lucky").exists():
        (folder / "error.json").write_text(json.dumps({"message": "thirteen is unlucky", "time": time.time()}))
        return 1
    checkpoint = folder / "last.pt"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with (folder / "starts.txt").open("a") as file:
        file.write(f"{step} {os.environ['PYTHONPATH'].split(os.pathsep)[0]}\n")
    while step < run.loop.max_steps:
        if is_stop_requested(os.environ["VITSSL_STOP_FILE"]):
            return 75
        time.sleep(STEP_S)
        if step == HELD_AT and (folder.parent / "hold").exists():
            continue
        step += 1
        partial = folder / "last.partial"
        partial.write_text(str(step))
        partial.replace(checkpoint)
    (folder / "cost.json").write_text(json.dumps(COST))
    (folder / "done.json").write_text(json.dumps({"step": step, "epochs": 1.0, "test": None, "time_s": STEP_S * step}))
    return 0


def evaluate(folder: Path, run: config.Run) -> int:
    results = folder / "evals.json"
    missing = pending(run, read_json(results))
    with (folder / "evaluations.txt").open("a") as file:
        file.write(f"{' '.join(missing)}\n")
    while missing:
        if is_stop_requested(os.environ["VITSSL_STOP_FILE"]):
            return 75
        time.sleep(STEP_S)
        if results.exists() and (folder.parent / "hold").exists():
            continue
        name, cfg = missing.popitem()
        write_json(results, read_json(results) | {name: {"config": cfg.defining(), "epoch": 1, "metrics": {"top1": 50.0}}})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
