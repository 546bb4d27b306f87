"""Every mistake in a sweep file or on the command line is one line that names the place, the field and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs import folders
from jobs.inputs import prepare
from jobs.plan.graph import Job
from tests.jobs.conftest import EXAMPLE, write_finished, write_index
from vitssl.config import ConfigError, Run, Site
from vitssl.config.metrics import METRICS, Metric
from vitssl.config.sweep import Resources

# (what is changed in the example, the error)
MISTAKES = [
    ("epochs: 10", "epocs: 10", "sweep.yaml: defaults: loop.epocs: .*[Dd]id you mean.*epochs"),
    ("epochs: 10", "epochs: ten", "sweep.yaml: defaults: loop.epochs: .*ten.*"),
    ("objectives.classify: {label_smoothing: 0.1}", "objectives.clasify: {}", "arms.opt_in.stages.train: objectives.clasify.*classify"),
    (
        "stages: {train: {objectives.classify: {}}}",
        "stages: {train: {objectives.classify: true}}",
        "scratch.stages.train: objectives.classify",
    ),
    ("columns: data", "columns: dta", "sweep.yaml: columns: 'dta' is not known .did you mean data"),
    ("baseline: scratch", "baseline: scrach", "sweep.yaml: baseline: 'scrach' is not known .did you mean scratch"),
    ("resources: {nodes: 2}", "baseline: chian_long", "arms.opt_in.baseline: 'chian_long' is not known .did you mean chain_long"),
    ("plain: 10.0", "plane: 10.0", "arms.scratch.published: 'plane' is not known .did you mean plain"),
    ("notes:", "note:", "sweep.yaml: .*note.*"),
    ("baseline: scratch", "base_line: scratch", "sweep.yaml: .*base_line.*"),
    ("init_from: pretrain}", "init_from: pretrian}", r"finetune: init_from: 'pretrian' is not known .did you mean pretrain\?.; it is no"),
    ("nodes: 1, gpus_per_node: 2", "nodes: 1, gpus_per_node: 3", "optim.batch_size: 16 is global .* = 3 processes"),
    ("batch_size: 16", "batch_size: 104", "optim.batch_size: 104 is more than the 100 images to train on"),
    ('title: "A paper", ', "", r"sweep.yaml: paper.title: it is empty; name what the sweep reproduces, or leave paper out"),
    (', table: "Table 1"', "", r"sweep.yaml: paper.table: it is empty; name what the sweep reproduces, or leave paper out"),
    ("https://example.org", "javascript:alert(1)", r"sweep.yaml: paper.url: 'javascript:alert\(1\)' is not a link to a page"),
    ("name: example", "name: ../example", "sweep.yaml: name: '../example' cannot be the folder of its runs"),
    ("seed: [0, 1]", "seed: [0, 0]", r"sweep.yaml: axes.seed: \[0, 0\] names a value twice"),
    ("hours: 1}", "hours: 0.005}", "resources.hours: 0.005 is less than 0.017"),
    ("nodes: 1, gpus_per_node: 2", "nodes: 1, gpus_per_node: -1", "resources.gpus_per_node: -1 is less than 0"),
    ("nodes: 1, gpus_per_node: 2", "nodes: 0, gpus_per_node: 2", "resources.nodes: 0 is less than 1"),
    ("patch_size: 4", "patch_size: 5", "backbone.patch_size: 5 does not divide"),
    ("shards: shards/digits", "shards: shards/none", "data.shards: .*shards/none/index.json does not exist: write the shards with"),
    ("shards: shards/digits", "shards: shards/digits, sha256: 0bad", "data.sha256: the Run asks for 0bad but .* holds [0-9a-f]{64}"),
    ("image_size: 16}", "image_size: 16, images: {per_class: 51}}", r"data.images.per_class: 51 is more than these classes have: a \(50\)"),
    ("shards: shards/digits", "shards: shards/digits, train_split: trian", "data.train_split: .*'trian' is not known .did you mean train"),
    ("stages: {train: {objectives.classify: {}}}", "stages: {}", "arms.scratch.stages: an arm needs a stage"),
    ("stages: {train", "not_runnable: why\n    stages: {train", "not_runnable: it says why the arm cannot run, but the arm has stages"),
    ("stages: {train", "train: {objectives.mae: {}}\n    stages: {train", "arms.scratch.train: .*mean arms.scratch.stages.train"),
    ("arms:\n", "arms:\n  empty:\n", "arms.empty.stages: an arm needs a stage, for example"),
    (
        "stages: {train: {objectives.classify: {}}}",
        "stages: {$(id): {objectives.classify: {}}}",
        r"stages: '\$\(id\)' cannot be the name of this stage",
    ),
    ("  scratch:\n", "  lr1.5:\n", "^sweep.yaml: arms.lr1.5: '5' is not known"),
    ("  scratch:\n", "  a b/../c:\n", "^sweep.yaml: arms.a b/.: '' is not known"),
    (
        "  scratch:\n",
        "  b c:\n",
        "^sweep.yaml: arms: .b c. cannot be the name of this arm; use letters, digits, dashes, underscores$",
    ),
    ("{train: {objectives.classify: {}}}", "{v1.0: {objectives.classify: {}}}", r"stages.v1: 0: '0' is not known"),
    ("{train: {objectives.classify: {}}}", "{train.objectives.clasify: {}}", "objectives.clasify: 'clasify' is not known .did you mean cl"),
    ("{train: {objectives.classify: {}}}", "{data: {objectives.classify: {}}}", "stages.data: a stage cannot have the name of a field"),
    ("seed: [0, 1]", "seed: 3", "axes.seed: expected a list of values or a mapping"),
    ("name: example", "nme: example", "sweep.yaml: nme: 'nme' is not known .did you mean name"),
    ("flipped: {data.views.main.hflip: 0.0}", "flipped: {data.vews.main.hflip: 0.0}", "sweep.yaml: axes.data.flipped: data.vews.*views"),
    ("notes: [", "notes: [[", "sweep.yaml: "),
    ("image_size: 16}", "image_size: 16, images: 7}", "sweep.yaml: defaults: data.images: 7 is not a set of fields"),
    ("stages: {train: {objectives.classify: {}}}", "stages: [train]", "sweep.yaml: arms.scratch.stages: .* is not a mapping of names"),
    ("resources: {nodes: 1", "smoke: [1]\nresources: {nodes: 1", r"sweep.yaml: smoke: \[1\] is not a mapping of names; write {name"),
    ("hours: 1}", "hours: .inf}", "resources.hours: inf is not finite"),
    ("{nodes: 1, gpus_per_node: 2, cpus_per_gpu: 1, hours: 1}", "2", "^sweep.yaml: resources: 2 is not a set of fields; set one"),
    ("seed: [0, 1]", "v: {a: {finetune: 3}, b: {}}", "^sweep.yaml: axes.v.a: finetune: 3 is not a set of fields"),
    ("seed: [0, 1]", "v: {a: {finetun.seed: 3}, b: {}}", "^sweep.yaml: axes.v.a: finetun.seed: .*did you mean finetune"),
    ("columns: data", "columns: data\nsmoke: {finetune.optim.lr: 8}", "^sweep.yaml: smoke: finetune: 'finetune' is not known"),
    ("columns: data", "columns: data\noverrides: {}", "^sweep.yaml: overrides: 'overrides' is not known"),
    ("name: example", "", "^sweep.yaml: name: not set; it is the folder of the sweep's runs"),
    ("batch_size: 16}", "batch_size: 16, lr: .nan}", "optim.lr: nan is not a finite number"),
    ("batch_size: 16}", "batch_size: 16, name: sgd, momentum: 1.5}", r"optim.momentum: 1.5 is not in \[0, 1\)"),
    (
        "image_size: 16}",
        "image_size: 16, views.main.color: [gray, {jitter: {strength: [-1, 0, 0, 0]}}]}",
        r"data.views.main.color\[1\].jitter.strength: .* none negative",
    ),
    (
        "image_size: 16}",
        "image_size: 16, views.main.blur_prob: 0.5}",
        "sweep.yaml: defaults: data.views.main.blur_prob: 'blur_prob' is not known .did you mean data.views.main.color",
    ),
    (
        "image_size: 16}",
        "image_size: 16, views.main.color: [blurr]}",
        r"sweep.yaml: defaults: data.views.main.color\[0\].blurr: .*mean blur",
    ),
    ("image_size: 16}", "image_size: 16, views.main.color: [3]}", r"sweep.yaml: defaults: data.views.main.color\[0\]: 3 is not a set of"),
    ("columns: data", "columns: data\nmetric: knn/top1", "sweep.yaml: metric: knn/top1: scratch has no evaluator knn; it has test"),
    ("columns: data", "columns: data\nmetric: test/nll", "sweep.yaml: metric: 'test/nll' is none of top1, top5, balanced_accuracy"),
    ("plain: 10.0", "plain: ten", "arms.scratch.published.plain: 'ten' is not a number"),
    ("plain: 10.0", "plain: .inf", "arms.scratch.published.plain: inf is not a number"),
    ("plain: 10.0", "plain: [10.0]", r"arms.scratch.published.plain: \[10.0\] is not a number"),
    ("gpu_hours: 60", "gpu_hours: [60]", r"arms.scratch.published_cost.big.gpu_hours: \[60\] is not a number"),
    ("columns: data", "columns: data\nmetric: top7", "sweep.yaml: metric: 'top7' is none of top1, top5"),
    ("columns: data", "select: [sed]", "sweep.yaml: select: 'sed' is not known .did you mean seed"),
    ("columns: data", "select: [seed]", "sweep.yaml: select: seed: seeds are averaged and columns shown side by side; select over other"),
    ("columns: data", "columns: data\nselect: [data]", "sweep.yaml: select: data: seeds are averaged"),
    (
        "seed: [0, 1]\ncolumns: data",
        "optim.lr: [0.1, 0.2]\ncolumns: data\nselect: [optim.lr]",
        r"arms.scratch.stages.train: data.val_fraction: select chooses optim.lr by held-out images, .* no images; set data.val_fraction or",
    ),
    (
        "seed: [0, 1]",
        "objectives.gmml.max_side: [0.3, 0.4]",
        "sweep.yaml: axes.objectives.gmml.max_side: .* off in all of these Runs",
    ),
    (
        "{objectives.classify: {}, init_from: pretrain}",
        "{objectives.classify: {}}",
        "arms.chain_short.stages.finetune: init_from: nothing starts from pretrain; add init_from: pretrain to finetune, or leave",
    ),
    (
        "columns: data",
        "columns: data\nmetric: top1_ema",
        "metric: top1_ema: scratch has no evaluator test_ema; .* no loop.ema",
    ),
]


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES, ids=[after[:40] for _, after, _ in MISTAKES])
def test_a_mistake_in_the_file_is_one_line_that_names_it(expand, before: str, after: str, message: str) -> None:
    assert before in EXAMPLE
    with pytest.raises(ConfigError) as error:
        expand(text=EXAMPLE.replace(before, after, 1), everything=True)
    assert "\n" not in str(error.value)
    assert re.search(message, str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "command line: optim.lrr: .*lr"),
        ("optim.lr=fast", "command line: optim.lr: "),
        ("optim.lr", "command line: 'optim.lr' is not key=value"),
        ("arms=[scrach]", "command line: arms: 'scrach' is not known .did you mean scratch"),
        ("axes.arms.scratch=[1]", "axes.arms.scratch: arms is not a field of a run$"),
        ("finetune.optim.lr=[1,2]", r"finetune.optim.lr: \[1, 2\] is not a number; write 'axes.finetune.optim.lr=\[1,2\]' for a run"),
        ("axes.sed=[1]", "command line: axes.sed: 'sed' is not known .did you mean seed"),
        ("axes.data=[plan]", "command line: axes.data: 'plan' is not known .did you mean plain"),
        ("resources.node=2", "^command line: resources.node: 'node' is not known .did you mean nodes"),
        ("resources.nodes=0", "^command line: resources.nodes: 0 is less than 1$"),
        ("arms.scratch.resources.hours=-1", "^command line: arms.scratch.resources.hours: -1 is less than"),
        ("optim.lr=-1", r"^command line: optim.lr: -1.0 is less than 0 .in sweep.yaml: arms.scratch.stages.train.$"),
        (
            "arms.scratch.optim.clip_norm=3",
            r"^command line: optim.clip_norm: 3.0 has an effect only with clip: .* .in sweep.yaml: arms.scratch.",
        ),
        ("finetune.optim.momentum=-1", r"^command line: optim.momentum: -1 .*arms.chain_short.stages.finetune.$"),
        ("resources.gpus_per_node=3", r"optim.batch_size: 16 .* = 3 processes .the command line set resources.gpus_per_node.$"),
        ("optim.batch_size=100000", r"^command line: optim.batch_size: 100000 is more than the 100 images"),
        ("data.test_split=tset", r"^command line: data.test_split: .* 'tset' is not known .did you mean test"),
        ("finetune.init_from=foo", r"^command line: init_from: 'foo' is not known"),
        ("finetune.backbone.depth=3", r"arms.chain_short.stages.finetune: init_from: .*.the command line set backbone.depth.$"),
        ("axes.seed=[a]", "^command line: axes.seed.a: seed: 'a' is not a whole number$"),
        ("axes.seed=-1", "^command line: seed: -1 is less than 0"),
        ("finetune.optim.lr=abc", "^command line: finetune.optim.lr: 'abc' is not a number$"),
        ("metric=top1_ema", "^command line: metric: top1_ema: scratch has no evaluator test_ema"),
        (
            "metric=selected/auc",
            "^command line: metric: selected/auc: .* no evaluator selected; its Run holds out no images; set data.val_fra",
        ),
        ("axes.seed=99999999999999999999", "^command line: seed: 99999999999999999999 is more than"),
        ("optim.betas={a: 1}", r"^command line: optim.betas: {'a': 1} is not a list; write \[...\]$"),
        ("optim.betas=0.9", r"^command line: optim.betas: 0.9 is not a list"),
        (f"name={'x' * 300}", "^command line: name: 'x+' cannot be the folder of its runs"),
        ("columns=sed", "^command line: columns: 'sed' is not known .did you mean seed"),
        ("baseline=scrach", "^command line: baseline: 'scrach' is not known"),
        ("metric=top2", "^command line: metric: 'top2' is none of top1, top5"),
        ("name=a/b", "^command line: name: 'a/b' cannot be the folder"),
        ("arms=[other_paper]", "none of other_paper can run"),
        ("axes.data=[[", "command line: axes.data: "),
        ("scratch.optim.lr=1", r"command line: scratch.optim.lr: scratch is an arm; write arms.scratch.optim.lr=\.\.\. for this arm alone"),
        ("optmi.lr=1", "command line: optmi.lr: 'optmi' is not known .did you mean optim"),
        ("arms.scrach.optim.lr=1", "command line: arms.scrach: 'scrach' is not known .did you mean scratch"),
        ("lenght=0.2", "^command line: lenght: 'lenght' is not known .did you mean length..$"),
        ("arms.extra={stages: {train: {}}}", "^command line: arms.extra: .*; a new arm is written into the sweep file$"),
        ("arms.scratch.optim.lrr=1", "^command line: arms.scratch.optim.lrr: 'lrr' is not known .did you mean lr"),
        ("arms.scratch.finetune.seed=1", "command line: arms.scratch.finetune.seed: .*'finetune' is not known .there is train"),
        ("arms.opt_in.optim.lr=1", r"command line: arms.opt_in: this arm is not selected; add it with arms=\[opt_in\]"),
        ("arms.scratch=1", "command line: arms.scratch: name a field, for example arms.scratch.optim.lr=1e-3"),
        ("data.images=7", "command line: data.images: 7 is not a set of fields; .* data.images.fraction or data.images.per_class"),
        ("arms.scratch.data.images=7", "command line: arms.scratch.data.images: 7 is not a set of fields"),
        ("finetune.data.views.main=0", "command line: finetune.data.views.main: 0 is not a set .* finetune.data.views.main.count"),
        ("seed=3", r"command line: seed: axes.seed sets it; write axes.seed=\.\.\. instead"),
        ("arms.scratch.seed=3", "command line: arms.scratch.seed: axes.seed sets it"),
        ("finetune=3", "^command line: finetune: 3 is not a set of fields; .* finetune.seed or finetune.data$"),
        ("finetune=[1]", r"^command line: finetune: \[1\] is not a set of fields"),
        ("finetune=null", "^command line: finetune: null is not a set of fields"),
        ("arms.scratch.stages.train=3", "^command line: arms.scratch.train: 3 is not a set of fields"),
        ("resources=2", "^command line: resources: name a field, for example resources.nodes=2$"),
        ("axes=3", "^command line: axes: name a field, for example axes.seed=.0,1.$"),
        ("optim..lr=1", "^command line: 'optim..lr=1' is not key=value"),
        ("arms=[]", "^command line: arms: name some of scratch, "),
        ("loop.epochs=???", "^command line: loop.epochs: not set; give it a value .in sweep.yaml: arms.scratch.stages.train.$"),
        ("finetune.objectives.mae.weight=1", "^command line: finetune.objectives.mae.weight: objectives.mae is off in all of these Runs"),
        (
            "objectives.drloc.weight=0.5",
            r"drloc.weight: objectives.drloc is off in all of these Runs; objectives.drloc=\{\} switches it on",
        ),
        ("objectives.mae=true", "command line: objectives.mae: true is not a set of fields; write {} for its defaults"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_names_it(expand, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        expand(override)
    assert "\n" not in str(error.value)
    assert re.search(message, str(error.value)), str(error.value)


def test_an_empty_file_is_no_sweep(expand) -> None:
    with pytest.raises(ConfigError, match=r"it has no arms, so it is not a sweep .*; sweeps/README\.md has a complete example"):
        expand(text="# later\n")


def test_a_metric_that_the_classifier_does_not_give_compares_no_arms_by_it(expand, monkeypatch) -> None:
    monkeypatch.setitem(METRICS, "rank", Metric("effective rank", unit=""))  # of another evaluator that somebody has added
    with pytest.raises(ConfigError, match=r"rank: an evaluator of type classification gives top1, .*, loss$"):
        expand("metric=rank", "arms=[scratch]")


def test_arms_are_compared_by_what_their_evaluator_gives(expand) -> None:
    for metric in ("test/loss", "ece", "probe/loss"):
        assert expand("evals.probe={type: linear}", f"metric={metric}", "arms=[scratch]").jobs
    with pytest.raises(ConfigError, match=r"knn/loss: an evaluator of type knn gives top1, top5, balanced_accuracy, macro_f1$"):
        expand("evals.knn={type: knn, k: 3}", "metric=knn/loss", "arms=[scratch]")


def test_a_selection_needs_held_out_images_and_a_metric_of_test_images(expand) -> None:
    fields, rates = ("select=optim.lr", "arms=[scratch]"), EXAMPLE.replace("seed: [0, 1]", "optim.lr: [0.1, 0.2]")
    for metric in ("top1", "selected/macro_f1"):
        assert len(expand(*fields, "data.val_fraction=0.1", f"metric={metric}", text=rates).cells) == 4
    with pytest.raises(
        ConfigError, match=r"^command line: data.val_fraction: .* holds out no images; set data.val_fraction or data.val_split .in"
    ):
        expand(*fields, "data.val_fraction=0", text=rates)
    pretrains = (
        "name: p\ndefaults: {data: {shards: shards/digits, val_fraction: 0.1}, evals.knn: {type: knn}}\naxes: {optim.lr: [0.1, 0.2]}\n"
    )
    pretrains += "arms: {mae: {stages: {pretrain: {objectives.mae: {}}}}}\nmetric: knn/top1\nselect: [optim.lr]\n"
    with pytest.raises(ConfigError, match=r"metric: selected/top1: mae has no evaluator selected; its Run has no objectives\.classify$"):
        expand(text=pretrains.replace("knn/top1", "selected/top1"))
    with pytest.raises(ConfigError, match=r"arms that end without objectives\.classify have none: leave select out$"):
        expand(text=pretrains)
    with pytest.raises(ConfigError, match=r"^command line: select: it is chosen by val/top1, .* as probe/top1 is; set metric: top1$"):
        expand(*fields, "data.val_fraction=0.1", "evals.probe={type: linear}", "metric=probe/top1", text=rates)
    text = rates.replace("{train: {objectives.classify: {}}}", "{train: {objectives.mae: {}}}")
    with pytest.raises(ConfigError, match=r"arms.scratch.stages.train: objectives: select chooses optim.lr by top1, .* no classes"):
        expand(*fields, "data.val_fraction=0.1", text=text)


def test_what_the_file_says_is_not_blamed_on_the_command_line(expand) -> None:
    """The batch stays the file's where the command line sets a rate."""
    with pytest.raises(
        ConfigError, match=r"^sweep.yaml: arms.scratch.stages.train: optim.batch_size: 0 is less than 1 .the command line set optim.lr.$"
    ):
        expand("optim.lr=1", text=EXAMPLE.replace("batch_size: 16", "batch_size: 0"))


def test_an_image_that_is_not_here_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"^site.image: there is no gone.sif here; build it"):
        prepare.check_machine([], Site(image="gone.sif", container="env"), here=True)
    prepare.check_machine([], Site(image="gone.sif", container="env"), here=False)


@pytest.mark.parametrize(
    ("flags", "slow"), [("fpu avx avx2", True), ("fpu avx512f avx512bw avx512dq avx512vl", False), ("fp asimd bf16", False), ("", True)]
)
def test_bf16_on_a_cpu_without_is_noted_where_runs_train(expand, tmp_path, monkeypatch, capsys, flags, slow) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n\nprocessor : 1\nflags : {flags}\n")
    monkeypatch.setattr(prepare, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(prepare, "visible_gpus", list)
    for words, here, noted in (
        ("loop.precision=bf16", True, slow),
        ("loop.precision=bf16", False, False),
        ("loop.precision=fp32", True, False),
    ):
        prepare.check_machine([stage for cell, _ in expand("arms=[scratch]", words).cells for stage in cell.stages], Site(), here=here)
        assert ("this machine's CPU has no native bf16, which makes it slow; use loop.precision=fp32" in capsys.readouterr().err) == noted


def test_compiling_on_a_cpu_without_a_compiler_is_refused_where_runs_train(expand, monkeypatch) -> None:
    stages = [stage for cell, _ in expand("arms=[scratch]", "loop.compile=true").cells for stage in cell.stages]
    monkeypatch.setattr(prepare, "visible_gpus", list)
    prepare.check_machine(stages, Site(), here=True)
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(ConfigError, match=r"^command line: loop.compile: it needs a C\+\+ compiler, and /nonexistent/g\+\+ is not on"):
        prepare.check_machine(stages, Site(), here=True)
    prepare.check_machine(stages, Site(), here=False)


def test_a_folder_for_caches_that_cannot_be_written_is_refused_where_runs_train(expand, monkeypatch) -> None:
    stages = [stage for cell, _ in expand("arms=[scratch]").cells for stage in cell.stages]
    monkeypatch.setenv("VITSSL_CACHE_DIR", "/proc/nope")
    with pytest.raises(ConfigError, match=r"^VITSSL_CACHE_DIR: /proc/nope is not a folder that can be written to, .* name another$"):
        prepare.check_machine(stages, Site(), here=True)
    prepare.check_machine(stages, Site(), here=False)
    prepare.check_machine(stages, Site(env={"VITSSL_CACHE_DIR": "/tmp"}), here=True)


def test_what_others_need_of_trained_runs_is_looked_at(tmp_path) -> None:
    parent, child = (Job(name, Run(), tmp_path / name, "sslft", name, {}, Resources(), []) for name in ("pretrain", "finetune"))
    child.parents.append(parent)
    folders.check_trained([parent, child])
    write_finished(parent.folder, {}, [])
    with pytest.raises(ConfigError, match=r"pretrain/last.pt is missing, but finetune starts from it; restore it, or remove .*pretrain to"):
        folders.check_trained([parent, child])
    (parent.folder / "last.pt").touch()
    folders.check_trained([parent, child])
    (parent.folder / "done.json").write_text("{")
    with pytest.raises(ConfigError, match=r"done\.json"):
        folders.check_trained([parent, child])


@pytest.mark.parametrize("words", [["metric=selected/top1"], ["select=[optim.lr]", "axes.optim.lr=[0.1,0.2]"]])
def test_held_out_images_that_the_shards_lack_choose_nothing(expand, words):
    """`val?` is a split that may be absent: without it, a report by the chosen epoch would be empty."""
    with pytest.raises(ConfigError, match=r"has none, as its shards have no split val; set data\.val_split=null data\.val_fraction=0\.1"):
        expand("arms=[scratch]", "data.val_split=val?", *words)
    expand("arms=[scratch]", "data.val_split=val?")
    expand("arms=[scratch]", "data.val_split=null", "data.val_fraction=0.1", *words)
    write_index(Path("shards/digits"), [("train", 60), ("val", 20), ("test", 20)])
    expand("arms=[scratch]", "data.val_split=val?", *words)
