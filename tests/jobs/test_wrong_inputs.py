"""Wrong inputs as people type them: exit code 2, one line that says what to do, no traceback, and nothing is written."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from jobs import cancel, site_profile, status, submit
from jobs.inputs import prepare
from jobs.plan import overrides
from tests.conftest import but_for_a_release, sweep_facts
from tests.jobs.conftest import EXAMPLE
from tests.test_trained import save_run
from vitssl import cli
from vitssl.config import ConfigError, Objectives
from vitssl.config.evals import FEATURE_KINDS, KINDS
from vitssl.config.objectives.classify import ClassifyConfig
from vitssl.config.objectives.mae import MaeConfig
from vitssl.words import listed

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "submit": submit.main, "status": status.main, "cancel": cancel.main, "vitssl": cli.main,
}  # fmt: skip
SIMMIM = r"for SimMIM write 'objectives.mae={mask_ratio: 0.6, hide: mask, decoder: pixel_shuffle, loss: l1}'"
MANY = str([i / 1000 for i in range(200)]).replace(" ", "")
ASKS_TIMM = "submit sweep.yaml arms=[scratch] init_from=timm:vit_tny --dry-run"  # whose import takes seconds
# (what is typed, what the line says)
WRONG = [
    # a field by another name, in another place, or not as key=value
    ("submit sweep.yaml lr=1e-3", "lr: 'lr' is not known (did you mean optim.lr?)"),
    ("submit sweep.yaml learning_rate=1e-3", "'learning_rate' is not known (did you mean optim.lr?)"),
    ("submit sweep.yaml leraning_rate=1e-3", "(did you mean optim.lr?)"),
    ("submit sweep.yaml batch_size=64", "(did you mean optim.batch_size?)"),
    ("submit sweep.yaml data.labels.per_class=9999 equalize=macs", "command line: data.labels.per_class: 9999 is more than these cl"),
    ("submit sweep.yaml data.val_fraction=0.9 data.labels.per_class=9 equalize=macs", "command line: data.labels.per_class: 9 is more"),
    ("submit one.yaml", "one.yaml: arms.scratch.published: one number for 3 columns; say which it is for: {plain: 10}"),
    ("submit sweep.yaml epochs=4", "(did you mean loop.epochs?)"),
    ("submit sweep.yaml gpus=4", "(did you mean resources.gpus_per_node?)"),
    ("submit sweep.yaml seeds=[0,1]", "(did you mean axes.seed?)"),
    ("submit seeds.yaml", "seeds.yaml: seeds: 'seeds' is not known (did you mean axes.seed?)"),
    ("submit pipe.yaml", "pipe.yaml: cannot be read (it is a pipe or a device)"),
    ("submit sweep.yaml --site pipe.yaml", "pipe.yaml: cannot be read (it is a pipe or a device)"),
    ("submit sweep.yaml site.intensity_kg_per_kwh=381", r"site.intensity_kg_per_kwh: 381 is not from 0 to .* kg CO2e/kWh"),
    ("submit sweep.yaml site.gpu_power_w=0.4", "site.gpu_power_w: 0.4 is not from 5 to 100000 W"),
    ("submit sweep.yaml site.gpu_power_w=0", "site.gpu_power_w: 0 is not from 5 to 100000 W"),
    ("submit sweep.yaml site.gpu_tflops=312e12", "site.gpu_tflops: 3.12e+14 is not from 0.001 to 1e+06 TFLOP/s"),
    ("submit sweep.yaml --site big.yaml site.intensity_csv=pipe.yaml", r"site.intensity_csv: .*pipe.yaml: cannot be read \(it is a pipe"),
    ("submit sweep.yaml \N{EN DASH}dry-run", "is not key=value; put a value with spaces in quotes"),
    ("submit sweep.yaml ft.optim.lr=1e-3", "'ft' is not known (there is train, pretrain, finetune)"),
    ("submit sweep.yaml --site gone.yaml", "there is no file gone.yaml; jobs/sites has local, slurm_a100, to be given by name"),
    ("submit tab.yaml", "tab.yaml: line 3: not YAML: a line is indented with a tab; write spaces"),
    ("submit colon.yaml", "colon.yaml: line 2: not YAML: a line before it lacks its `:`, or a value that holds `: ` its quotes"),
    ("submit latin.yaml", "latin.yaml: it is not UTF-8 text; save it as UTF-8"),
    ("submit armed.yaml", "armed.yaml: axes.arms.a: arms: arms is not a field of a run"),
    ("vitssl shards build digits notes.txt", "OUT: notes.txt is not a folder; name another"),
    ("submit sweep.yaml optim.batch_size=62 loop.micro_batch_size=30", "30: a process's 31 images per step can only be split into 31"),
    ("submit sweep.yaml data.folds=1", "command line: data.folds: 1 is less than 2"),
    ("submit sweep.yaml data.folds=9999 equalize=macs", "command line: data.folds: 9999 is more than these classes have: "),
    ("submit sweep.yaml data.folds=5 data.test_split=val", "data.test_split: val has an effect only with no data.folds; leave it out, or"),
    ("submit sweep.yaml data.image_size=-1", "command line: data.image_size: -1 is less than 1"),
    ("submit sweep.yaml data.views.main.size=-5", "command line: data.views.main.size: -5 is less than 1"),
    ("submit sweep.yaml size=64", "(did you mean data.image_size?)"),
    ("submit sweep.yaml evals.near.k=3", "evals.near.type: the type is missing; write 'evals={near: {type: knn, k: 3}}'"),
    ("submit sweep.yaml evals.knn.kk=3", "evals.knn.kk: 'kk' is not known (did you mean k?"),
    ("submit sweep.yaml evals.probe.l2=0.1", "evals.probe.type: the type is missing; write 'evals={probe: {type: linear, l2: 0.1}}'"),
    ("submit sweep.yaml select=optim.lr", "select: 'optim.lr' is not known (there is data, seed); 'axes.optim.lr=[A,B]' adds an"),
    (
        "submit sweep.yaml 'axes.cost=[equal epochs]'",
        "axes.cost: 'cost' is not known (did you mean equalize?)",
    ),
    ("submit sweep.yaml backbone.embed_dim=100 backbone.num_heads=3", "3 does not divide embed_dim=100; embed_dim=96 would do"),
    ("submit sweep.yaml train.objectives.lut.mask_ratio=0.3", "off in all of these Runs; train.objectives.lut={} switches it on"),
    ("vitssl export runs/example/scratch", "required: out (file to write), --to (timm, safetensors, huggingface or onnx); see vitssl e"),
    ("vitssl export runs/example/scratch runs/example/pretrain out --to timm", "unrecognized arguments: out (one run at a time)"),
    (
        "submit sweep.yaml 'axes.patch={p4: {backbone.patch_size: 4}, p8: {backbone.patch_size: 8}}' axes.backbone.patch_size=[4,8]",
        "axes.backbone.patch_size: axes.patch sets backbone.patch_size too, which would make its values identical; "
        "choose one of them with axes.patch=[p4], or leave one of the axes out",
    ),
    ("submit sweep.yaml evals.knn.neighbors=3", "'neighbors' is not known (did you mean evals.knn.k?)"),
    ("submit sweep.yaml axes.arm=[scratch]", "'arm' is not known (did you mean arms?)"),
    ("submit sweep.yaml -m", "unrecognized arguments: -m; "),
    ("submit sweep.yaml optim.epochs=4", "'epochs' is not known (did you mean loop.epochs?)"),
    ("submit sweep.yaml finetune.lr=1", "finetune.lr: 'lr' is not known (did you mean finetune.optim.lr?)"),
    ("submit sweep.yaml 'objectives={mae: {}, mae: {}}'", "objectives: mae is set twice; leave out one"),
    ("submit sweep.yaml objectives.simclr.pooling=mean", "'pooling' is not known (did you mean pool or objectives.drloc.pooling?)"),
    ("submit sweep.yaml momentum_teacher=0.9", "(did you mean objectives.dino.teacher_momentum?)"),
    ("submit sweep.yaml local_crops_number=8", "(did you mean data.views.local.count?)"),
    ("submit sweep.yaml --resume", "(repeat the command to continue: finished runs are kept)"),
    ("submit sweep.yaml optim.lr=1e-3,1e-4", "write 'axes.optim.lr=[1e-3,1e-4]' for a run with each"),
    ("submit sweep.yaml optim.lr=[1e-3,1e-4]", "write 'axes.optim.lr=[0.001,0.0001]' for a run with each"),
    (
        "submit sweep.yaml axes.seed=0 axes.seed=1 axes.seed=2",  # what a shell makes of axes.seed={0,1,2}
        "axes.seed: it is given as 0, 1 and 2; leave out all but one, and put braces in quotes; axes.seed=[A,B] makes a run with each",
    ),
    ("submit sweep.yaml optim.lr=1e-3 optim.lr=1e-4", "axes.optim.lr=[A,B] makes a run with each"),
    ("submit sweep.yaml axes=seed:[0 axes=1 axes=2]", "axes: it is given as 1, 2] and seed:[0; leave out all but one"),
    ("submit sweep.yaml objectives=classify:{} objectives=drloc:{}", "leave out all but one, and put braces in quotes"),
    ("submit sweep.yaml equal_to=scratch", "equal_to: nothing is equalized; add equalize=macs (or gpu_hours, kwh), or leave this out"),
    ("submit sweep.yaml data.shards=shards/new data.source=digit --dry-run", "source 'digit' is neither an existing folder nor one of"),
    ("submit sweep.yaml data.shards=shards/new data.source=flder:photos --dry-run", "(did you mean folder:?)"),
    ("submit sweep.yaml optim={lr:1e-3}", "optim.lr:1e-3: 'lr:1e-3' is not known; write a space behind the colon: lr: 1e-3"),
    ("vitssl shards build wds:gone/x.tar shards/new", "wds:gone/x.tar: there is no tar gone/x.tar"),
    ("submit sweep.yaml --lr 1e-3", "unrecognized arguments: --lr (did you mean optim.lr=VALUE?)"),
    ("submit sweep.yaml --learning-rate=1", "(did you mean optim.lr=VALUE?)"),
    ("submit sweep.yaml optim.lr 1e-3", "'optim.lr' is not key=value; write optim.lr=VALUE"),
    ("submit sweep.yaml optim.lr=", "optim.lr: null is not a number"),
    ("submit sweep.yaml backbone=vit_tiny", "set one of them, such as backbone.name"),
    ("submit sweep.yaml nothing={}", "'nothing' is not known"),
    (
        "submit sweep.yaml arms=[scratch] 'objectives={classify: null, dino: {}}' 'data.views={second: {}, local: {size: 96}}'",
        "96 is larger than data.image_size, 16, and local views are smaller; add data.views.local.size=8",
    ),
    ("submit sweep.yaml arms=scratch,chain_short", "'scratch,chain_short' is one name; write arms=[scratch,chain_short]"),
    ("submit sweep.yaml loop.device=gpu", "'gpu' is none of auto, cpu, cuda (did you mean cuda?)"),
    # methods that no field is named after
    ("submit sweep.yaml objectives.simmim={}", f"objectives.simmim: 'simmim' is not a field; {SIMMIM}; sweeps/lut_simmim.yaml"),
    ("submit sweep.yaml simmim={}", SIMMIM),
    ("submit sweep.yaml objectives.convmae={}", "for ConvMAE write backbone.name=cvt_13 'objectives.mae={fuse: true}'"),
    ("submit sweep.yaml backbone.name=sl_vit", "for SL-ViT write 'backbone={tokenizer: shifted, attention: local}'"),
    ("submit sweep.yaml backbone.name=deit_small", "for DeiT write backbone.name=vit_tiny (or vit_small, vit_base"),
    ("submit sweep.yaml backbone.name=vit_tny", "(did you mean vit_tiny?)"),
    # one meaning of several
    ("submit sweep.yaml objectives.gmml={}", "(scratch: classify, chain_short.pretrain: mae, chain_short.finetune: classify, "),
    (
        "submit sweep.yaml 'arms.chain_short.pretrain.objectives={simclr: null, gmml: {}}'",
        "objectives.simclr is off in all of these Runs (chain_short.pretrain: mae), so null has no effect; name one that is on",
    ),
    ("submit sweep.yaml arms.scratch.objectives.drloc=null", "(scratch: classify), so null has no effect; name one that is on, or"),
    ("submit sweep.yaml arms=[chain_short] finetune.init_from=null", "nothing starts from pretrain; add init_from: pretrain to finetune"),
    ("submit sweep.yaml arms.chain_short.objectives.gmml={}", "for example 'arms.chain_short.pretrain.objectives={mae: null, gmml: {}}'"),
    ("submit sweep.yaml init_from=runs/example/pretrain", "say which stage is meant, arms.chain_short.pretrain.init_from=runs/exampl"),
    ("submit sweep.yaml backbone.name=vit_tiny_patch16_224", "(did you mean vit_tiny?)"),
    ("submit sweep.yaml objectives.gmml.mask=3", "objectives.gmml.mask: 'mask' is not known (there is weight, "),
    ("submit sweep.yaml 'stages={pretrain: {objectives.mae: {}}}'", "stages.pretrain: 'stages' is not known"),
    ("submit sweep.yaml notes=hello", "notes: 'notes' is not known"),
    ("submit sweep.yaml optim.batch_size=104", "104 is more than the 100 images to train on; set it lower, such as 32"),
    ("submit sweep.yaml axes.seed=[0,", "axes.seed: '[0,' is not a YAML value; quote it all, as in 'axes.seed=[0, 1]', or write it w"),
    # names in braces
    ("submit sweep.yaml evals={knn}", "evals: knn has no value; write {knn: {}} for its defaults, or {knn: null} for off"),
    ("submit sweep.yaml 'objectives={classify, mae}'", "objectives: classify has no value; write {classify: {}}"),
    ("submit bare.yaml", "bare.yaml: line 2: classify has no value; write {classify: {}} for its defaults"),
    # fields with dots
    ("submit twice.yaml", "twice.yaml: line 6: arms.a.stages.train.optim.lr: line 4 sets it too; leave out one"),
    ("submit whole.yaml", "whole.yaml: line 5: arms.a.stages.train.objectives.mae: line 4 sets it too; leave out one"),
    ("submit sweep.yaml 'axes.w={1: null, 1.5: {optim.lr: 1, optim: {lr: 2}}}'", "axes.w: [1.5].optim.lr is set twice; leave out one"),
    ("submit sweep.yaml 'optim={schedule.name: cosine, schedule: {name: constant}}'", "optim: schedule.name is set twice; leave out one"),
    # axes
    ("submit sweep.yaml axes.optim.lrr=[1,2]", "axes.optim.lrr: 'lrr' is not known (did you mean lr?)"),
    ("submit sweep.yaml axes.lr=[1,2]", "axes.lr: 'lr' is not known (did you mean optim.lr?)"),
    ("submit sweep.yaml axes.seed=", "axes.seed: expected a list of values or a mapping of names to fields, not [], such as [0, 1]"),
    # files and folders
    ("submit quickstrat.yaml", "quickstrat.yaml: there is no such file (did you mean SWEEPS/quickstart.yaml?)"),
    ("submit quikstart", "(did you mean SWEEPS/quickstart.yaml?)"),
    ("submit sweeps/quickstart.yml lr=1", "sweeps/quickstart.yml: there is no such file (did you mean SWEEPS/quickstart.yaml?)"),
    ("submit optim.lr=1 sweep.yaml", "'optim.lr=1' is not a sweep file; that comes first, then key=value"),
    ("submit sweep.yaml sweep.yaml", "'sweep.yaml' is not key=value; one sweep file at a time"),
    ("submit sweep.yaml backbone={name: vit_tiny}", "backbone: '{name:' is not a YAML value"),
    ("submit sweep.yaml axes.seed=[0, 1] loop.epochs=3", "axes.seed: '[0,' is not a YAML value; quote it all, as in 'axes.seed=[0, 1]'"),
    ("submit sweep.yaml optim.lr: 1e-3", "'optim.lr:' is not key=value; write optim.lr=VALUE"),
    ("submit sweep.yaml axes.seed=[0,1", "'[0,1' is not a YAML value; its ] is missing; quote it all"),
    ("submit sweep.yaml axes.data=big plain", "'plain' is not key=value; put a value with spaces in quotes"),
    ("submit sweep.yaml optim.lr:1e-3", "'optim.lr:1e-3' is not key=value"),
    ("submit sweep.yaml --name foo", "(did you mean name=VALUE?)"),
    ("submit sweep.yaml --seed 3", "(did you mean axes.seed=VALUE?)"),
    ("submit sweep.yaml arms=[scratch] loop.epochs=1", "1 leaves none of the 1 epoch after the warm-up; type loop.warmup_epochs=0"),
    ("submit runs/example", "this is a folder; name a sweep file, for example sweep.yaml"),
    ("submit runs/example/scratch/run.yaml", "it has no arms, so it is not a sweep"),
    ("submit big.yaml", "big.yaml: it has no arms, so it is not a sweep (a site profile goes to --site)"),
    ("submit one.png", "one.png: not a sweep file, whose name ends in .yaml"),
    ("submit sweep.yaml --runs notes.txt", "--runs notes.txt: this is a file; name a folder"),
    ("submit sweep.yaml --runs 'runs\ntouch pwned #'", "has a line break or another control character; choose another folder"),
    ("submit sweep.yaml data.shards=runs/example", "runs/example: this is a folder of runs, and holds no shards; name a folder"),
    ("submit sweep.yaml data.source=folder:gone data.shards=new", "data.source: there is no .*/gone to build the shards from"),
    ("submit sweep.yaml data.shards=torchvision:CIFAR10", "write data.source=torchvision:CIFAR10 data.shards=shards/NAME"),
    ("submit sweep.yaml data.shards=imagefolder:photos", "images come from there, and it is no folder of shards; write"),
    ("submit sweep.yaml data.shards=tars", "tars/train-*.tar?test=val-*.tar' shards/tars` writes"),
    ("submit", "the following arguments are required: sweep (a YAML file, for example sweeps/quickstart.yaml); "),
    ("submit notes.md", "notes.md: not a sweep file, whose name ends in .yaml; name one, for example sweeps/quickstart.yaml"),
    ("submit sweep.yaml optim.betas=0.9,0.95", "optim.betas: '0.9,0.95' is not a list; write [...]: 'optim.betas=[0.9,0.95]'"),
    ("submit sweep.yaml data.image_size=32,32", "data.image_size: '32,32' is not a whole number; write data.image_size=32"),
    ("submit sweep.yaml 'axes={optim: {lr: [1e-3]}}'", "axes.optim.lr: [0.001] is not a mapping of names; write {name: value}"),
    ("submit sweep.yaml objectives.mae.mask_ratio=75", "75 is not in (0, 1); 75 % is objectives.mae.mask_ratio=0.75"),
    ("submit sweep.yaml data.val_fraction=20%", "'20%' is not a number; write data.val_fraction=0.2"),
    ("submit sweep.yaml backbone.name=ViT-Tiny", "(did you mean vit_tiny?)"),
    ("submit sweep.yaml backbone.name=deit_tiny_patch16_224", "(did you mean vit_tiny?)"),
    ("submit sweep.yaml metric=accuracy", "nor an evaluator's, such as selected/top1 or knn/top1 (did you mean top1?)"),
    ("submit sweep.yaml resources.hours=1:30", "resources.hours: 1:30 would be a number to the base of 60; write a decimal one"),
    ("submit sweep.yaml backbone.patch_size=5", "5 does not divide the 16 px of data.views.main; 4 does, and of images 15 px would do"),
    ("vitssl predict runs/example/scratch photos --output x.csv", "unrecognized arguments: --output (did you mean --csv?); see vitssl pr"),
    ("submit sweep.yaml data.val_fraction=20", "20 is not in [0, 1); 20 % is data.val_fraction=0.2"),
    ("submit sweep.yaml 'data.labels={fraction: 2}'", "2 is not in (0, 1]; 2 % is data.labels.fraction=0.02"),
    ("submit sweep.yaml optim.name=sgd optim.momentum=9", "optim.momentum: 9 is not in [0, 1)"),
    ("submit sweep.yaml optim.schedule=Linear", "'Linear' is none of cosine, linear, constant (did you mean linear?)"),
    ("submit sweep.yaml lr_scheduler=cosine", "(did you mean optim.schedule?)"),
    ("submit sweep.yaml metric=knn/top1", "scratch has no evaluator knn; it has test; add 'evals={knn: {type: knn}}'"),
    ("vitssl evaluate runs/example/scratch --type knn --k 5", "unrecognized arguments: --k (did you mean --set k=VALUE?); see vitssl e"),
    ("vitssl evaluate runs/example/scratch --max-iter 5", "unrecognized arguments: --max-iter (did you mean --set max_iter=VALUE?)"),
    ("submit sweep.yaml -hours 3", "unrecognized arguments: -hours (did you mean resources.hours=VALUE?)"),
    ("vitssl fields -help", "unrecognized arguments: -help (did you mean --help?)"),
    ("submit sweep.yaml --site big.yaml 'site.additional={cpus-per-task: 8}'", "set resources.cpus_per_gpu, which is checked and shown"),
    ("vitssl fields -lr", "unrecognized arguments: -lr; see vitssl fields --help"),
    ("vitssl bench --json shards", "--json: shards is a folder; name a file"),
    ("submit sweep.yaml data.images.seed=9223372036854775808", "data.images.seed: 9223372036854775808 is more than 9,223,372,036,854,77"),
    ("vitssl cost runs/example/scratch --k 5", "unrecognized arguments: --k; see vitssl cost --help"),
    ("vitssl shards build folder:photos shards/x --seed 3", "unrecognized arguments: --seed; see vitssl shards build --help"),
    ("vitssl export runs/example/scratch --format onnx", "unrecognized arguments: --format (did you mean --to?)"),
    ("submit sweep.yaml data.view.main.hflip=0", "data.view: 'view' is not known (did you mean views?)"),
    ("vitssl shards build folder:my photos shards/x", "unrecognized arguments: shards/x (a name with spaces needs quotes, "),
    ("vitssl fields dropout", "no field matches 'dropout' (did you mean backbone.drop_path?)"),
    ("submit sweep.yaml --dryrun", "unrecognized arguments: --dryrun (did you mean --dry-run?)"),
    (ASKS_TIMM, "init_from: timm:vit_tny: timm has no such"),
    ("submit sweep.yaml metric=accuracy", "metric: 'accuracy' is none of top1, top5, .*, nor top1_ema, nor an evaluator's"),
    # places
    ("submit sweep.yaml loop.device=cuda --dry-run", "command line: loop.device: this machine has no visible NVIDIA GPU; set"),
    ("submit sweep.yaml data.cache_dir=/proc/nope", "command line: data.cache_dir: /proc/nope is not a folder that can be written to, for"),
    ("submit sweep.yaml data.cache_dir=/dev/null --dry-run", "command line: data.cache_dir: /dev/null is not a folder that can be writ"),
    ("submit sweep.yaml 'site.env={VITSSL_CACHE_DIR: /proc/nope}'", "command line: site.env: /proc/nope is not a folder that can be wr"),
    ("submit sweep.yaml --dry-run --greenest-within tomorrow", "argument --greenest-within: 'tomorrow' is not a time such as 24h, 90m"),
    ("submit sweep.yaml --dry-run --greenest-within=-3h", "argument --greenest-within: '-3h' is not a time such as 24h, 90m or 2d"),
    ("submit sweep.yaml --dry-run --greenest-within=32d", "argument --greenest-within: 32d is longer than 31d"),
    ("submit sweep.yaml --site", "argument --site: expected one argument (site profile); "),
    ("vitssl predict runs/example/scratch photos --csv", "argument --csv: expected one argument (file to write, with a row per image); "),
    ("submit sweep.yaml --site slurm_a10", "site: 'slurm_a10' is not known (did you mean slurm_a100?)"),
    ("submit sweep.yaml --site gone.yaml", "site: there is no file gone.yaml"),
    (f"submit sweep.yaml 'axes.optim.lr={MANY}' 'axes.optim.weight_decay={MANY}'", "axes: 800,000 combinations"),
    ("submit sweep.yaml --site big.yaml 'site.env={A B: c}'", "command line: site.env.A B: 'A B' is not the name of a variable"),
    ("submit sweep.yaml --site big.yaml 'site.env={\"A;ls\": c}'", "site.env.A;ls: 'A;ls' is not the name of a variable"),
    ("submit sweep.yaml --site big.yaml site.env.1X=3", "command line: site.env.1X: '1X' is not the name of a variable"),
    ("submit sweep.yaml --site big.yaml 'site.additional={--mail-type: FAIL}'", "site.additional.--mail-type: '--mail-type' is not an"),
    ("submit sweep.yaml --site big.yaml 'site.qos=\"a\\nrm -rf ~\"'", "site.qos: 'a\\nrm -rf ~' has a line break"),
    ("submit sweep.yaml --site big.yaml 'site.after=[train]'", "site.after: 'train' is not an id of a SLURM job"),
    ("submit sweep.yaml --site big.yaml 'site.additional={dependency: \"after:1?after:2\"}'", "sbatch cannot combine alternatives (?)"),
    ("submit sweep.yaml --site big.yaml 'site.report={dependency: \"after:1?after:2\"}'", "site.report.dependency: sbatch cannot combine"),
    ("submit sweep.yaml --site big.yaml --executor slurm --dry-run --max-parallel 0", "site.max_parallel: 0 would run no jobs; set 1"),
    ("submit sweep.yaml --site big.yaml site.mail_type=FIAL", "site.mail_type: 'FIAL' is not known (did you mean FAIL?)"),
    ("submit sweep.yaml --site big.yaml site.mail_user=me@x.org", "site.mail_user: SLURM sends no mail without site.mail_type; set it"),
    ("submit sweep.yaml --site big.yaml site.nice=3000000000", "site.nice: 3000000000 is not from -2147483645 to 2147483645"),
    ("submit sweep.yaml --site big.yaml 'site.exclude=node1 node2'", "site.exclude: 'node1 node2' is not a name; separate several by"),
    ("submit sweep.yaml --site big.yaml 'site.additional={time: 5}'", "site.additional.time: what a job requests is the sweep's; set res"),
    ("submit sweep.yaml 'optim={lr: 0,001}'", "optim: 001 has no value; write a decimal number with a point, such as 0.001, and"),
    ("submit sweep.yaml --site big.yaml 'site={nice: 5, additional: {nice: 7}}'", "site.nice: site.additional sets nice too; keep one of"),
    ("submit sweep.yaml --site big.yaml 'site.additional={array: 0-3}'", "site.additional.array: an array holds the runs of a stage"),
    ("submit sweep.yaml --site big.yaml 'site.report={array: 0-3}'", "site.report.array: an array holds the runs of a stage"),
    ("submit sweep.yaml --max-parallel two", "site.max_parallel: 'two' is no"),
    ("submit sweep.yaml --site big.yaml --executor auto", "names the partition gpu, but no SLURM cluster answers here"),
    ("submit sweep.yaml --executor slrum", "argument --executor: 'slrum' is not known (did you mean slurm?)"),
    ("submit sweep.yaml axes.SEED=0", "(did you mean seed?)"),
    ("submit copied.yaml", "runs/example holds the runs of sweep.yaml; give this one a name of its own, such as name=copied"),
    ("submit copied.yaml --dry-run", "name: .*runs/example holds the runs of sweep.yaml; give this one a name"),
    ("submit other/sweep.yaml", "runs/example holds the runs of sweep.yaml; give this one a name of its own, such as name=sweep"),
    ("submit sweep.yaml loop.loggers=[wandb] --dry-run", "loop.loggers: wandb is not installed; pip install '.[loggers]', or leave it out"),
    ("submit sweep.yaml site.image=gone.sif --dry-run", "command line: site.image: apptainer, which enters it (site.container), is not on"),
    ("submit sweep.yaml site.image=gone.sif 'site.container=\"\"'", "command line: site.container: it is empty; name the command that"),
    ("submit sweep.yaml site.image=a.sif 'site.container=\"env x\\x27\"'", "site.container: \"env x'\" is no command of a shell ("),
    ("submit sweep.yaml data.shards=shards/new data.source=folder:nope --dry-run", "/nope to build the shards from"),
    ("submit axis.yaml", "axes.seed: expected a list of values or a mapping of names to fields, not 3, such as"),
    ("cancel", "the following arguments are required: sweep (the sweep's folder, for example runs/quickstart"),
    # what runs left behind
    ("status runs", "runs/sweep.json does not exist: this is not a sweep's folder (runs/NAME, such as runs/example)"),
    ("status exmple", "exmple/sweep.json does not exist: this is not a sweep's folder (runs/NAME, such as runs/example)"),
    ("status runs/exmple", "runs/exmple/sweep.json does not exist: this is not a sweep's folder (runs/NAME, such as runs/example)"),
    ("vitssl report runs/exmple", "this is not a sweep's folder (runs/NAME, such as runs/example)"),
    ("vitssl report runs", "this is not a sweep's folder (runs/NAME, such as runs/example)"),
    ("cancel runs/example/scratch", "this is not a sweep's folder (runs/NAME, such as runs/example)"),
    ("vitssl report runs", "runs/sweep.json does not exist"),
    ("vitssl report runs/example/scratch", "runs/example/scratch/sweep.json does not exist"),
    ("vitssl evaluate runs/example", "runs/example is the folder of a whole sweep; name one of its runs, for example runs/example/"),
    ("vitssl evaluate runs", "runs is not a run folder; name one, such as runs/example/"),
    ("vitssl evaluate runs/example/scratch --type kn", f"'kn' is none of {', '.join(KINDS)} (did you mean knn?)"),
    ("vitssl evaluate runs/example/scratch --type knn --set k", "'k' is not field=value"),
    ("vitssl evaluate runs/example/scratch --type knn --set k=0", "--set k: 0 is "),
    ("vitssl evaluate runs/example/scratch --weights best", "runs/example/scratch has no best.pt"),
    ("submit sweep.yaml metric=selected/balanced_acc", "(did you mean selected/balanced_accuracy?)"),
    ("vitssl evaluate runs/example/scratch --type knn", "error: gone, the shards of runs/example/scratch, do not exist; if they"),
    ("vitssl evaluate runs/example/scratch --set type=knn", "error: --set type: write --type in its place"),
    (
        "vitssl evaluate runs/example/pretrain",
        f"the Run has no classify objective, so it predicts no classes; {listed(FEATURE_KINDS)} look",
    ),
    ("vitssl evaluate runs/example/scratch --ema", "(did you mean --weights ema?)"),
    ("vitssl predict runs/example/scratch seven.png --ema", "(did you mean --weights ema?)"),
    ("vitssl evaluate runs/example/scratch --weights ema", "the Run has no averaged weights; set loop.ema_decay"),
    ("vitssl evaluate runs/example/scratch --checkpoint run.yaml", "run.yaml is not a checkpoint that can be read (it holds other"),
    ("vitssl evaluate runs/example/scratch --checkpoint best.pt", "has no best.pt; only runs that classify and have held-out "),
    ("vitssl predict runs/example/scratch one.png --csv notes.txt/x.csv", "notes.txt is not a folder that can be written to; name"),
    ("vitssl predict runs/example/scratch notes.txt", "notes.txt: cannot be decoded as an image"),
    ("vitssl predict runs/example/scratch gone.png", "gone.png does not exist; name images, or folders of images"),
    ("vitssl predict runs/example/scratch empty", "empty holds no images: no file ends in .jpg"),
    ("vitssl predict runs/example/scratch one.png --csv /proc/x.csv", "/proc is not a folder that can be written to; name another pl"),
    ("vitssl export runs/example/scratch /proc/x.pth --to timm", "/proc is not a folder that can be written to; name another place for"),
    ("vitssl weights timm:deit_tiny_patch16_224.fb_in1k /proc/x.pt", "/proc is not a folder that can be written to; name another place"),
    ("vitssl bench --json /proc/x.json", "/proc is not a folder that can be written to; name another place for x.json"),
    ("vitssl predict runs/example/scratch one.png --csv notes.txt", "notes.txt exists; delete it, or choose another name"),
    ("vitssl predict runs/example/report runs/example/scratch one.png", "runs/example/report is not a run; name the runs of one arm, su"),
    ("vitssl predict runs/example/scratch runs/example/report one.png", "runs/example/report is not a run; name the runs of one arm, su"),
    ("vitssl predict one.png runs/example/scratch", "runs/example/scratch is a run; name runs first, then images: vitssl predict runs"),
    ("vitssl shards build folder:gone shards/new", "folder:gone: there is no such folder"),
    ("vitssl shards build digits shards/new --workers -3", "--workers: -3 is not a whole number of at least 1"),
    ("vitssl shards build folder:photos?test=0.2&test=0.3 shards/new", "test is there twice, as 0.2 and as 0.3; leave out one"),
    ("vitssl shards build csv:t.csv shards/new", "t.csv:2: 3 values under a header of 2 columns; put a value that holds a comma in quotes"),
    ("vitssl shards build csv:t.csv?grop=patient shards/new", "unknown option 'grop'; known: path, label, images, test, val, seed, group"),
    ("vitssl shards build list:.?train=t.csv&label=5 shards/new", "t.csv:1: 2 columns, of which label=5 is none"),
    ("vitssl shards build torchvision:cifar10 shards/new", "ImageNet (did you mean torchvision:CIFAR10?)"),
    ("vitssl shards build imagefolder:photos shards/new", "wds:... (did you mean folder:?)"),
    ("vitssl shards build digits", "the following arguments are required: out"),
    ("vitssl shards build folder:photos?test=0.2", "for example shards/photos); an unquoted & ends a command"),
    ("vitssl shards info runs", "runs: this is a folder of runs, and holds no shards; name a folder that `vitssl shards build SOURCE"),
    ("vitssl shards info runs/example/scratch", "this is a folder of runs, and holds no shards"),
    ("vitssl weights timm:vit_tiny_patch16_22", "timm has no such weights: 'vit_tiny_patch16_22' is not known (did you mean vit_tiny_"),
    ("vitssl shards info gone", "gone/index.json does not exist: write the shards with"),
    ("vitssl cost gone", "there is no folder gone; name a run, such as runs/example/"),
    ("vitssl cost runs/gone", "there is no folder runs/gone; name a run, such as runs/example/"),
    ("vitssl cost runs/exmple/scratch", "there is no folder runs/exmple/scratch; name a run, such as runs/example/scratch"),
    ("vitssl cost runs/example", "name one of its runs, for example runs/example/pretrain"),
    ("vitssl cost example", "there is no folder example; name a run, such as runs/example/"),
    ("vitssl import notes.txt --as mae", "notes.txt is not a checkpoint that can be read"),
    ("vitssl evaluate runs/example/scratch --type knnn", f"error: --type: 'knnn' is none of {', '.join(KINDS)} (did you mean knn?"),
    ("vitssl evaluate runs/example/scratch --weights teacher", "error: runs/example/scratch: --weights: "),
    ("submit sweep.yaml optim.lr_rule=linear", "sqrt_batch, sqrt_batch/8 (did you mean batch/256?)"),
    ("submit sweep.yaml --site sweep.yaml", "site: sweep.yaml is a sweep, not a site profile, which says where jobs run; "),
    ("vitssl fields learnign_rate", "no field matches 'learnign_rate' (did you mean optim.lr?)"),
    ("vitssl train sweep.yaml", "argument COMMAND: 'train' is not a command of vitssl; `python jobs/submit.py SWEEP` trains, for example"),
    ("vitssl retry runs/example", "'retry' is not a command of vitssl; `python jobs/retry.py runs/NAME` tries again what failed"),
    ("vitssl predict photos runs/example/scratch", "runs/example/scratch is a run; name runs first, then images: vitssl predict runs/exam"),
    ("vitssl shards build shards/x 'folder:photos?test=0.2&seed=0'", "vitssl shards build 'folder:photos?test=0.2&seed=0' shards/x"),
    ("vitssl shards build shards/x folder:photos", "the source comes first, then the folder to write: vitssl shards build folder:photos s"),
    ("vitssl shards build runs/example folder:photos", "the source comes first, then the folder to write: vitssl shards build fold"),
    ("vitssl shards build cifar10 shards/digits", "source 'cifar10' is neither an existing folder nor one of digits, "),
    ("vitssl fields msak", "no field matches 'msak' (did you mean mask?)"),
    ("vitssl fields ssatt", "no field matches 'ssatt' (did you mean ssat?)"),
    ("vitssl evalaute runs/example/scratch", "argument COMMAND: 'evalaute' is not known (did you mean evaluate?)"),
    ("vitssl --verison", "unrecognized arguments: --verison (did you mean --version?)"),
    ("vitssl", "the following arguments are required: COMMAND"),
]  # fmt: skip


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory as people have it: a sweep, its runs, images, and other files."""
    place = tmp_path_factory.mktemp("somewhere")
    (place / "sweep.yaml").write_text(EXAMPLE)
    (place / "t.csv").write_text("path,label\na.png,x,\n")
    (place / "copied.yaml").write_text(f"# copied\n{EXAMPLE}")
    (place / "axis.yaml").write_text(EXAMPLE.replace("seed: [0, 1]", "seed: 3"))
    (place / "one.yaml").write_text(re.sub(r"published: .*", "published: 10.0", EXAMPLE, count=1).replace("name: example", "name: one"))
    (place / "other").mkdir()
    (place / "other" / "sweep.yaml").write_text(EXAMPLE.replace("chain_short", "chain_other"))
    (place / "big.yaml").write_text("name: big\npartition: gpu\n")
    (place / "bare.yaml").write_text("name: bare\narms: {a: {stages: {train: {objectives: {classify}}}}}\n")
    train = "arms: {a: {stages: {train: {\n  objectives.classify: {},\n"
    (place / "twice.yaml").write_text(f"name: twice\n{train}  optim.lr: 1.0e-3,\n  loop.epochs: 2,\n  optim: {{lr: 0.5}}}}}}}}}}\n")
    (place / "whole.yaml").write_text(f"name: whole\n{train}  objectives.mae.weight: 0.5,\n  objectives.mae: null}}}}}}}}\n")
    (place / "seeds.yaml").write_text(f"seeds: [0, 1]\n{EXAMPLE}")
    (place / "tab.yaml").write_text("arms:\n  a:\n\tstages: {}\n")
    (place / "colon.yaml").write_text("name mine\narms: {a: {}}\n")
    (place / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (place / "armed.yaml").write_text("name: x\narms: {a: {stages: {train: {objectives.classify: {}}}}}\naxes: {arms: [a]}\n")
    os.mkfifo(place / "pipe.yaml")
    (place / "tars").mkdir()
    for name in ("train-000000", "train-000001", "val-000000"):
        (place / "tars" / f"{name}.tar").touch()
    (place / "notes.txt").write_text("hello: world")
    (place / "notes.md").write_text("# Notes")
    (place / "empty").mkdir()
    Image.effect_noise((20, 20), 90).save(place / "one.png")
    sweep = place / "runs" / "example"
    for name, objectives in {
        "scratch": Objectives(classify=ClassifyConfig()),
        "pretrain": Objectives(mae=MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)),
    }.items():
        save_run(sweep / name, objectives)
        (sweep / name / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    for figures in ("plots", "strips"):
        (sweep / "report" / figures).mkdir(parents=True)
        Image.new("L", (9, 9)).save(sweep / "report" / figures / "one.png")
    (sweep / "sweep.json").write_text(json.dumps(sweep_facts(name="example", file="sweep.yaml")))
    return place


SOON = [(typed, said) for typed, said in WRONG if typed != ASKS_TIMM]


@pytest.mark.parametrize(("typed", "said"), but_for_a_release(WRONG, SOON), ids=[typed for typed, _ in WRONG])
def test_a_wrong_input_is_one_line(place, somewhere, monkeypatch, capfd, typed: str, said: str) -> None:
    monkeypatch.setattr(submit.cluster, "answers", lambda: False)
    monkeypatch.setattr(submit.cluster.shutil, "which", lambda name: None)
    monkeypatch.setattr(prepare, "visible_gpus", list)
    monkeypatch.setattr(prepare, "find_spec", lambda name: None)  # of loggers
    for path in somewhere.iterdir():
        (place / path.name).symlink_to(path)
    before = sorted(place.rglob("*"))
    command, *words = shlex.split(typed)
    if command == "submit" and "--executor" not in words and words[-1:] != ["--site"]:
        words += ["--executor", "local"]
    try:
        code = COMMANDS[command](words)
    except SystemExit as ended:  # argparse's
        code = ended.code
    shown = capfd.readouterr()
    assert code == 2, shown
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1, shown.err
    expected = said.replace("SWEEPS", str(submit.sweep_files.SWEEPS))
    assert re.search(expected if ".*" in said else re.escape(expected), shown.err), shown.err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([], "mysite.yaml: env.1X"),
        (["site.env.GOOD=1"], "mysite.yaml: env.1X"),
        (["site.env.1X=b"], "command line: site.env.1X"),
        (["site.env={1X: b}"], "command line: site.env.1X"),
    ],
)
def test_a_wrong_part_of_a_sites_field_is_told_where_it_was_set(tmp_path, words, place):
    (tmp_path / "mysite.yaml").write_text("env: {1X: a}\n")
    with pytest.raises(ConfigError) as error:
        site_profile.read(str(tmp_path / "mysite.yaml"), overrides.parse(words).site)
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith(f"{place}: '1X' is not the name of a variable")
