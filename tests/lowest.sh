#!/usr/bin/env bash
# Do the lowest versions that pyproject.toml allows work? bash tests/lowest.sh FOLDER [install]
#
# Makes a virtual environment of them in FOLDER (4 GB to download, since torch comes with CUDA), if it is not there, and runs there
# one test, or one file of tests, of everything that another package is asked for; `install` only makes it.
set -euo pipefail
folder=$(realpath --canonicalize-missing "${1:?usage: bash tests/lowest.sh FOLDER [install]}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

slow=tests/data/test_shards.py::test_interrupted_build_goes_on # and of no package's
gradient='tests/test_gradients.py::test_the_whole_gradient_equals_finite_differences'
tests=(
    tests/test_imports.py::test_every_module_is_importable
    tests/backbones/test_{vit,swin,resnet}.py              # timm
    "tests/backbones/test_norms.py::test_two_ranks_equal_torchs_norm_of_the_whole_batch[1-plain]" # collectives
    "$gradient"'[cvt-classify/cls-contiguous-cpu]' "$gradient"'[cvt-classify/cls-channels_last-cpu]' # torch's kernels
    "$gradient"'[t2t-classify/cls-contiguous-cpu]'
    tests/training/test_train.py::test_golden_loss_curve   # tensorboard
    tests/test_trained.py::test_one_image_is_a_batch_of_one
    tests/cli/test_predict.py                              # pillow
    tests/checkpoints/test_pretrained.py                   # safetensors
    tests/costs/test_cost.py                               # fvcore
    tests/costs/test_emissions.py                          # codecarbon
    tests/data/test_shards.py                              # webdataset, scikit-learn
    tests/data/test_tars.py                                # braceexpand
    tests/views/test_augment.py                            # torchvision
    tests/jobs/test_launcher.py                            # submitit
    tests/jobs/test_local.py::test_a_chain_runs_in_order_and_leaves_folders_and_a_report
    tests/jobs/test_rendezvous.py::test_a_job_of_one_node_listens_on_the_loopback_interface_alone # torchrun
    tests/report/test_page.py::test_a_report_has_every_file_and_needs_no_other # matplotlib
    tests/report/test_stats.py                             # scipy
    tests/report/test_page.py::test_summary_is_for_the_terminal # rich
)

if [[ ! -x $folder/bin/pytest ]]; then
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet uv
    "$folder/bin/uv" pip install --python "$folder/bin/python" --no-cache --resolution lowest-direct -e '.[test]'
fi
[[ ${2:-} == install ]] || "$folder/bin/pytest" -m 'release or not release' --deselect "$slow" "${tests[@]}"
