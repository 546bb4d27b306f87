#!/usr/bin/env bash
# Do the lowest versions that pyproject.toml allows work? bash tests/lowest.sh FOLDER
#
# Makes a virtual environment of them in FOLDER (4 GB to download, since torch comes with CUDA) and runs there one test, or
# one file of tests, of everything that another package is asked for.
set -euo pipefail
folder=$(realpath --canonicalize-missing "${1:?usage: bash tests/lowest.sh FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=(
    tests/test_imports.py::test_every_module_is_importable
    tests/backbones/test_{vit,swin,resnet,norms}.py        # timm, collectives
    tests/test_train.py::test_golden_loss_curve            # torch, tensorboard
    tests/test_evaluate.py                                 # pillow
    tests/test_state.py                                    # safetensors
    tests/test_cost.py                                     # fvcore
    tests/test_emissions.py                                # codecarbon
    tests/data/test_shards.py                              # webdataset, scikit-learn
    tests/data/test_tars.py                                # braceexpand
    tests/views/test_augment.py                            # torchvision
    tests/jobs/test_launcher.py                            # submitit
    tests/jobs/test_rendezvous.py                          # torchrun
    tests/jobs/test_local.py::test_a_chain_runs_in_order_and_leaves_folders_and_a_report
    "tests/jobs/test_sweeps.py::test_every_arm_trains_evaluates_and_is_reported[drloc_scratch-]" # Swin, CvT, T2T-ViT, ResNet
    tests/report/test_stats.py                             # scipy
    tests/report/test_page.py::test_{a_report_has_every_file_and_needs_no_other,summary_is_for_the_terminal} # matplotlib, rich
)

python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --python "$folder/bin/python" --no-cache --resolution lowest-direct -e '.[test]'
"$folder/bin/pytest" -m 'release or not release' "${tests[@]}"
"$folder/bin/pytest" -m 'release or not release' tests/test_gradients.py -k cvt
