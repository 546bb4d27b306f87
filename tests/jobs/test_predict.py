"""Predicted cost: MACs x images over a throughput, from the site, from an earlier run, or assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import submit
from jobs.display import show
from jobs.plan import overrides, pace, predict, shards
from jobs.plan.architecture import architecture
from jobs.plan.graph import Graph
from jobs.plan.launch import Launch
from jobs.plan.sweep import read
from jobs.source import digest, source_files
from tests.jobs.conftest import EXAMPLE, write_finished
from tests.report.conftest import record
from vitssl.config import Objectives, Run, Site, Subset
from vitssl.config.objectives.mae import MaeConfig
from vitssl.files import read_json, write_json
from vitssl.terminal import console

CLASSES = 2  # of the shards that `expand` makes
COST = {"macs_train_step": 6e9, "macs_inference": 3e9}
IMAGES = 1008  # of 10 epochs of 100: 62.5 batches of 16 are 63 whole ones
EVALUATIONS = 100  # 10 of 20 images: each half the work of a training image's 3 forwards of 2 GMACs
STARTS_S = 2 * predict.START_S  # of two processes


@pytest.fixture
def graph(expand, place: Path) -> Graph:
    graph = expand("arms=[scratch]", "axes.data=[plain]", "axes.seed=[0]")
    tell_cost(graph, place)
    return graph


def tell_cost(graph: Graph, place: Path) -> None:
    cache = place / "runs" / ".cost"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"{architecture(graph.jobs[0].run)}-{CLASSES}-{digest(source_files())[:12]}.json").write_text(json.dumps(COST))


def predict_one(graph: Graph, place: Path, site: Site) -> predict.Prediction:
    launch = Launch(place / "runs" / "example", "slurm", site, place, commit=(None, True))
    (prediction,) = predict.predict_runs(graph, launch)
    return prediction


def test_hand_computed_from_the_sites_peak(graph: Graph, place: Path) -> None:
    site = Site(gpu_tflops=120.0, gpu_power_w=500.0, price_per_gpu_hour=3.0, intensity_kg_per_kwh=0.2)
    prediction = predict_one(graph, place, site)
    # 6 x 2 GFLOP for each image, at 30 % of 120 TFLOP/s: 3,000 images/s; but 50 ms for the 8 of a process: 160 images/s
    assert prediction.images == IMAGES
    hours = (1108 / 160 + STARTS_S) / 3600
    assert prediction.gpu_hours == pytest.approx(hours)
    assert prediction.hours == pytest.approx(hours / 2)  # two GPUs
    assert prediction.energy_kwh == pytest.approx(hours / 2)
    assert prediction.co2e_kg == pytest.approx(hours / 10)
    assert prediction.money == pytest.approx(3 * hours)
    assert prediction.basis == "assumed: 30% of the 120 TFLOP/s of the site's GPU, and 50 ms a step at least"
    # each of the two compiles for a minute
    graph.jobs[0].run.loop.compile = True
    tell_cost(graph, place)
    assert predict_one(graph, place, site).gpu_hours == pytest.approx(hours + 2 / 60)
    # of a large batch, and of a small one
    assert predict._throughput(None, True, site, 6e9, 8000, 0.02)[0] == pytest.approx(3000)
    assert predict._throughput(None, True, site, 6e9, 8, 0.02)[0] == pytest.approx(400)


def test_an_earlier_run_of_the_architecture_is_better_than_an_assumption(graph: Graph, place: Path) -> None:
    described = {"architecture": architecture(graph.jobs[0].run), "executor": "slurm", "site": {"gpu": "H200"}}

    def earlier(name: str, device: str, *speeds: float) -> None:
        write_finished(place / "runs" / "other" / name, described, speeds, device=device, ranks=2)

    earlier("scratch-1", "NVIDIA H200", 10, 500, 400)  # the first steps do not count
    earlier("scratch-2", "NVIDIA H200", 1000, 1000)
    earlier("scratch-3", "NVIDIA H200", 20)  # a busy node
    earlier("scratch-4", "EPYC", 3)  # of the same cluster, without GPUs
    prediction = predict_one(graph, place, Site(gpu="H200", gpu_tflops=60.0))
    assert prediction.gpu_hours == pytest.approx(((IMAGES + EVALUATIONS) / 225 + STARTS_S) / 3600)
    assert prediction.basis.startswith("measured") and prediction.basis.endswith("NVIDIA H200")
    # of another board, it says nothing
    assert predict_one(graph, place, Site(gpu="A100", gpu_tflops=60.0)).basis.startswith("assumed")


def test_the_pace_of_a_run_is_what_its_cost_json_says(graph: Graph, place: Path, capsys) -> None:
    described = {"architecture": architecture(graph.jobs[0].run), "executor": "slurm", "site": {"gpu": "H200"}}
    folder = place / "runs" / "other" / "scratch"
    write_finished(folder, described, [10, 500, 400], device="NVIDIA H200", ranks=2)
    write_json(folder / "emissions-0-n1.json", record(energy_kwh=2.0))
    assert list(pace.measured(place / "runs").values()) == [pace.Pace(225.0, 0.002, "NVIDIA H200")]
    cost = read_json(folder / "cost.json")
    write_json(folder / "cost.json", cost | {"training": cost["training"] | {"images_per_s": 0}})
    assert pace.measured(place / "runs") == {}
    assert "cost.json: unexpected content (training.images_per_s: 0 is not from 1e-09" in capsys.readouterr().err


def test_fewer_steps_or_images_cost_less(graph: Graph) -> None:
    run = graph.jobs[0].run
    run.loop.max_steps = 2
    assert shards.images_trained(run) == 32
    run.loop.max_steps, run.data.images = None, Subset(fraction=0.2)
    assert shards.images_trained(run) == 13 * 16  # 10 epochs of 20 images are 12.5 batches
    run.data.images = Subset(per_class=7)
    assert shards.images_trained(run) == 9 * 16  # 10 epochs of 14 are 8.75
    # a classifier cannot use the images whose label is hidden
    run.data.labels = Subset(per_class=3)
    assert shards.images_trained(run) == 4 * 16  # 10 epochs of 6 are 3.75


def test_evaluations_cost_what_they_see(graph: Graph) -> None:
    run = graph.jobs[0].run  # 10 epochs, 100 training and 20 test images
    assert shards.images_evaluated(run) == 10 * 20
    run.loop.eval_every = 4
    assert shards.images_evaluated(run) == 3 * 20  # after 4, 8, and at the end
    run.loop.ema_decay = 0.9
    assert shards.images_evaluated(run) == 3 * 40
    run.loop.max_steps = 50
    assert shards.images_evaluated(run) == 2 * 40  # 50 batches of 16 are 8 epochs
    run.loop.max_steps = None
    run.data.val_fraction, run.loop.eval_every = 0.1, 0
    assert shards.images_evaluated(run) == 10 + 40
    run.loop.eval_every = 5
    assert shards.images_evaluated(run) == 2 * (10 + 40) + 10 + 20  # at the end by best.pt too
    run.objectives = Objectives(mae=MaeConfig())
    assert shards.images_evaluated(run) == 0


@pytest.mark.release
def test_what_is_not_built_yet_is_predicted_where_its_images_are_known(graph: Graph, place: Path) -> None:
    data = graph.jobs[0].run.data
    data.shards, data.source = str(place / "shards" / "CIFAR-10"), "torchvision:CIFAR10"
    assert predict_one(graph, place, Site()).images == 10 * 50_000  # as printed
    data.images = Subset(fraction=0.2)
    assert predict_one(graph, place, Site()).images == 10 * 10_000
    data.shards, data.source, data.images = str(place / "shards" / "new"), "digits", None
    assert predict_one(graph, place, Site()).images == 842 * 16  # 10 epochs of 1,347, as listed, are 841.9 batches
    data.source = "torchvision:CIFAR10"
    assert predict.predict_runs(graph, Launch(place / "runs" / "example", "slurm", Site(), place, commit=(None, True))) == []


def test_a_cpu_has_hours_and_no_gpu_hours(graph: Graph, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(gpu_tflops=120.0, price_per_gpu_hour=3.0)
    launch = Launch(place / "runs" / "example", "local", site, place, commit=(None, True))
    monkeypatch.setattr(pace, "visible_gpus", lambda: ["board"])
    (on_gpu,) = predict.predict_runs(graph, launch)
    assert on_gpu.gpu_hours == pytest.approx((1108 / 160 + STARTS_S) / 3600)
    monkeypatch.setattr(pace, "visible_gpus", lambda: [])
    (on_cpu,) = predict.predict_runs(graph, launch)
    # 1,008 images of 6 x 2 GFLOP at 0.1 TFLOP/s, by two processes
    assert on_cpu.hours == pytest.approx((1.108 * 120 + STARTS_S) / 3600 / 2) and "CPU" in on_cpu.basis
    assert (on_cpu.gpu_hours, on_cpu.energy_kwh, on_cpu.co2e_kg, on_cpu.money) == (0, None, None, 0)
    graph.jobs[0].run.loop.device = "cpu"
    assert predict_one(graph, place, site).gpu_hours == 0


def test_another_number_of_crops_is_another_architecture(graph: Graph) -> None:
    before = architecture(graph.jobs[0].run)
    graph.jobs[0].run.data.views.main.count = 2
    assert architecture(graph.jobs[0].run) != before


def test_a_weight_and_a_seed_make_no_other_architecture(graph: Graph) -> None:
    run = graph.jobs[0].run
    before = architecture(run)
    run.objectives.classify.weight, run.seed, run.optim.lr = 0.1, 5, 1.0
    assert architecture(run) == before


def test_what_is_done_costs_nothing_more(graph: Graph, place: Path) -> None:
    folder = graph.jobs[0].folder
    folder.mkdir(parents=True)
    (folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    (folder / "metrics.jsonl").touch()
    assert predict.predict_runs(graph, Launch(place / "runs" / "example", "slurm", Site(), place, commit=(None, True))) == []


def test_the_most_gpus_are_those_of_runs_that_do_not_wait_for_each_other(expand) -> None:
    """A seed and data set: scratch, and a pretraining for both chains: 2 + max(2, 2 + 2) GPUs, or 2 where one chain runs."""
    one = ("axes.data=[plain]", "axes.seed=[0]")
    assert predict.most_gpus(expand("arms=[chain_short]", *one)) == 2
    assert predict.most_gpus(expand(*one)) == 6
    assert predict.most_gpus(expand()) == 4 * 6
    assert predict.most_gpus(expand("arms=[opt_in]", *one)) == 4  # on two nodes
    graph = expand(*one)
    for job in graph.jobs[:2]:  # scratch and the pretraining
        job.folder.mkdir(parents=True)
        (job.folder / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    assert predict.most_gpus(graph) == 4


def test_the_longest_chain_is_of_runs_that_wait_for_each_other(expand) -> None:
    graph = expand("axes.data=[plain]", "axes.seed=[0]")
    hours = {"scratch": 6.5, "chain_short-pretrain": 1.0, "chain_short-finetune": 2.0, "chain_long-finetune": 5.0}
    predictions = [
        predict.Prediction(job.name, 1.0, 1.0, value, value, 0.0, 0.0, 0.0, "")
        for job in graph.jobs
        for name, value in hours.items()
        if job.name.startswith(name)
    ]
    assert predict.longest_chain_hours(graph, predictions) == 6.5
    predictions[0].hours = 3.0
    assert predict.longest_chain_hours(graph, predictions) == 6.0


def test_the_table_says_that_its_macs_are_of_a_whole_step(graph: Graph, place: Path, capsys) -> None:
    launch = Launch(place / "runs" / "example", "slurm", Site(), place, commit=(None, True))
    predicted, spec = predict.predict_runs(graph, launch), read("sweep.yaml", overrides.parse(["arms=[scratch]", "axes.data=[plain]"]))
    show.jobs(graph, spec, console(width=200), predicted, Site())
    show.jobs(graph, spec, console(width=200), predicted, Site(), all_jobs=True)
    shown = capsys.readouterr().out
    assert shown.count(" GMACs/image, step ") == 2 and shown.count(" 6.000 ") == 2


def test_networks_to_count_are_said_as_every_number_is(graph: Graph, place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(predict.questions, "of_runs", lambda _, runs, *__: [{}] * len(runs))
    launch = Launch(place / "runs" / "example", "slurm", Site(), place, commit=(None, True))
    for number in (1, 1200):
        predict._count((graph.jobs[0].run,) * number, (2,) * number, launch)
    assert capsys.readouterr().err.splitlines() == ["counting the MACs of 1 network ...", "counting the MACs of 1,200 networks ..."]


def test_a_step_of_several_gpus_or_passes_is_launched_kernel_by_kernel():
    run = Run()
    least = {}
    for processes, micro_batch_size, compiled in ((1, None, False), (1, None, True), (2, None, True), (1, 8, True)):
        run.loop.compile, run.loop.micro_batch_size = compiled, micro_batch_size
        least[processes, micro_batch_size, compiled] = predict._least_step_s(run, processes)
    assert list(least.values()) == [predict.RECORDED_S, predict.COMPILED_S, predict.LAUNCHED_S, predict.LAUNCHED_S]


def test_a_folder_of_runs_that_is_named_and_holds_none_is_said_to(place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(predict, "_count", lambda runs, *_: [COST | {"params_train": 1}] * len(runs))
    Path("sweep.yaml").write_text(EXAMPLE)
    words = ["sweep.yaml", "--executor", "local", "--dry-run", "arms=[scratch]"]
    for _ in range(2):  # the first one leaves what it has counted there
        assert submit.main([*words, "--runs", "rnus"]) == 0
        assert "note: rnus (--runs) holds nothing yet, so there are no earlier runs" in capsys.readouterr().err
    assert submit.main(words) == 0
    assert "holds nothing yet" not in capsys.readouterr().err, "the default is no mistake"
    Path("rnus/example").mkdir()
    assert submit.main([*words, "--runs", "rnus"]) == 0
    assert "(--runs)" not in capsys.readouterr().err
