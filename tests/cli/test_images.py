"""The list of the images that a run uses, held against what its training is given."""

from __future__ import annotations

import csv
import io

import pytest

from vitssl import cli, config
from vitssl.data.building import names
from vitssl.data.index import load_index
from vitssl.data.loading.subset import split_of


def listed(capsys, folder) -> list[dict[str, str]]:
    assert cli.main(["images", str(folder)]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_every_image_is_listed_with_its_use_and_what_training_sees_of_its_label(untrained_run, digits, capsys):
    data = {"val_fraction": 0.2, "images": {"per_class": 20, "seed": 0}, "labels": {"per_class": 3, "seed": 1}}
    folder = untrained_run({"data": data, "objectives.mae": {"decoder_dim": 8, "decoder_depth": 1, "decoder_heads": 2}})
    index, rows = load_index(digits), listed(capsys, folder)
    split, known = split_of(index, config.load(folder)), names.of_images(index)
    for name, positions in {"train": split.train, "val": split.val, "test": split.test}.items():
        of_name = [row for row in rows if row["use"] == name]
        assert [int(row["index"]) for row in of_name] == positions.tolist() and len(positions)
        assert [row["name"] for row in of_name] == known[positions].tolist()
        assert [row["class"] for row in of_name] == [index.classes[label] for label in index.label[positions]]
        assert {row["label"] for row in of_name} == ({"seen", "hidden"} if name == "train" else {""})
        assert {row["split"] for row in of_name} == ({"test"} if name == "test" else {"train"})
    seen = [int(row["index"]) for row in rows if row["label"] == "seen"]
    assert len(seen) == 30 and seen == [position for position in split.train.tolist() if split.labels[position] >= 0]


def test_a_pretraining_sees_no_label(untrained_run, digits, capsys):
    fields = {"objectives": {"classify": None, "mae": {"decoder_dim": 8, "decoder_depth": 1, "decoder_heads": 2}}}
    assert {row["label"] for row in listed(capsys, untrained_run(fields)) if row["use"] == "train"} == {"hidden"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"data.sha256": "0" * 64}, "is not what"), ({"data.shards": config.NO_SHARDS}, "was imported without images")],
)
def test_images_that_are_not_the_runs_are_refused(untrained_run, digits, capsys, fields, said):
    assert cli.main(["images", str(untrained_run(fields))]) == 2
    assert said in capsys.readouterr().err
