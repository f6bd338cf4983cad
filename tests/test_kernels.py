"""Kernels: NumPy against slow loops, spaces, tile files and tables; and, where TVM is installed, every sketch against
NumPy, candidates that crash or are late, and MetaSchedule."""
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.stats
import torch
from matplotlib import pyplot
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from kit.data import OPCODE_NAMES, DataError, read_tile
from kit.files import locked
from kit.models.tile import TileModel
from kit.search import explore_then_droplet
from lab.kernels import carried as kernel_carried
from lab.kernels import measure as kernel_lab
from lab.kernels import metaschedule
from lab.kernels.carried import (
    _tile_columns,
    carried_cost,
    definition,
    fit_carried,
    fit_known,
    known_cost,
    known_measurements,
    measurements_needed,
    schedule_numbers,
    shared_iterations,
)
from lab.kernels.definitions import KERNELS, Kernel, input_shapes, kernel_axes, kernel_inputs, kernel_result
from lab.kernels.layer_study import (
    LAYER_SEED,
    SEARCHES,
    TWO_PARTS,
    UNTUNED,
    SearchJob,
    measured_table,
    merged_races,
    race_table,
    run_race,
    run_search,
    search_path,
    starts_left,
)
from lab.kernels.libraries import called_libraries, library_groups, matmul_ratios, over_library, peak_shares
from lab.kernels.measure import PYTORCH, KernelLab, NoScheduleRan, Trials, has_tvm, processor_name
from lab.kernels.metaschedule import Tuner
from lab.kernels.network_pictures import (
    draw_layers,
    draw_networks,
    draw_progress,
    draw_time_shares,
    draw_winning_choices,
)
from lab.kernels.network_results import (
    SORTS,
    compare_networks,
    compare_searches,
    compare_seeds,
    complete_races,
    every_form,
    layer_ratios,
    measurements_saved,
    network_sums,
    newest_forms,
    read_races,
    readable_ratios,
    search_progress,
    search_seconds,
    stacked,
    time_shares,
    winners_luck,
    winning_choices,
)
from lab.kernels.networks import layer_kernel, multiplications, network_layers, network_names
from lab.kernels.pytorch import pytorch_calls
from lab.kernels.results import draw_curves, draw_study, network_summary, study_summary, study_table, unsteady
from lab.kernels.schedules import choice_columns, kernel_tiles, schedule_choices, schedule_space
from lab.kernels.searches import CARRIED, OURS, RIVAL
from lab.kernels.study import learn_and_search, study_kernels
from lab.kernels.tile_file import kernel_cost, kernel_graph, schedule_features, write_kernel_tile
from lab.kernels.traces import TraceSpace
from lab.sample import write_sample

SMALL = {"matmul": Kernel("small matmul", "matmul", (8, 16, 12)),
         "batch matmul": Kernel("small batch matmul", "matmul", (2, 6, 16, 5)),
         "conv2d": Kernel("small conv2d", "conv2d", (6, 4, 5, 16, 3)),
         "conv2d, stride 2": Kernel("small strided conv2d", "conv2d", (9, 7, 3, 16, 3), 2),
         "conv2d, 1x1": Kernel("small 1x1 conv2d", "conv2d", (8, 8, 6, 12, 1), 2),
         "conv2d, no padding": Kernel("small unpadded conv2d", "conv2d", (7, 7, 4, 6, 3), 1, 0),
         "depthwise": Kernel("small depthwise", "depthwise", (5, 6, 16, 3)),
         "depthwise, stride 2": Kernel("small strided depthwise", "depthwise", (9, 9, 16, 5), 2),
         "dense": Kernel("small dense", "matmul", (1, 24, 20)),
         "100 columns": Kernel("small matmul of 100 columns", "matmul", (3, 100, 6)),
         "layer norm": Kernel("small layer norm", "layer norm", (6, 24)),
         "softmax": Kernel("small softmax", "softmax", (6, 24))}
each_kind = pytest.mark.parametrize("kernel", SMALL.values(), ids=SMALL)
needs_tvm = [pytest.mark.kernels, pytest.mark.skipif(
    not has_tvm(), reason="no TVM: pip install -r notebooks/requirements-kernels.txt")]


def dims_of(kernel):
    return [len(choice.values) for choice in schedule_space(kernel)]


def slow_result(kernel, inputs):
    """By loops over single numbers, in float64."""
    x, *others = [array.astype(np.float64) for array in inputs]
    spatial, _ = kernel_axes(kernel)
    out = np.zeros(spatial)
    for place in np.ndindex(*spatial):
        if kernel.kind == "matmul":
            *batch, i, j = place
            out[place] = sum(x[(*batch, i, k)] * others[0][(*batch, k, j)] for k in range(x.shape[-1]))
        elif kernel.kind in ("conv2d", "depthwise"):
            taps = kernel.sizes[-1]
            p = taps // 2 if kernel.padding is None else kernel.padding
            for a, b in np.ndindex(taps, taps):
                i, j, o = place[0] * kernel.stride + a - p, place[1] * kernel.stride + b - p, place[2]
                if 0 <= i < x.shape[0] and 0 <= j < x.shape[1]:
                    pixel = x[i, j]
                    out[place] += pixel[o] * others[0][a, b, o] if kernel.kind == "depthwise" else sum(
                        pixel[c] * others[0][a, b, c, o] for c in range(len(pixel)))
        elif kernel.kind == "softmax":
            row = x[place[0]]
            out[place] = np.exp(row[place[1]]) / sum(np.exp(one) for one in row)
        else:
            row = x[place[0]]
            mean = sum(row) / len(row)
            variance = sum((one - mean) ** 2 for one in row) / len(row)
            out[place] = (row[place[1]] - mean) / np.sqrt(variance + 1e-5) * others[0][place[1]] + others[1][place[1]]
    return out


@each_kind
def test_the_oracle_of_a_kernel_agrees_with_loops_over_single_numbers(kernel):
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    result = kernel_result(kernel, inputs)
    assert result.dtype == np.float32 and result.shape == kernel_axes(kernel)[0]
    np.testing.assert_allclose(result, slow_result(kernel, inputs), rtol=1e-4, atol=1e-5)


def pytorch_result(kernel, inputs):
    x, *others = map(torch.tensor, inputs)
    if kernel.kind in ("conv2d", "depthwise"):
        taps, channels = kernel.sizes[-1], kernel.sizes[2]
        order, groups = ((3, 2, 0, 1), 1) if kernel.kind == "conv2d" else ((2, 0, 1), channels)
        weight = others[0].permute(order).reshape(-1, channels // groups, taps, taps)
        padding = taps // 2 if kernel.padding is None else kernel.padding
        return functional.conv2d(x.permute(2, 0, 1)[None], weight, None, kernel.stride, padding, 1,
                                 groups)[0].permute(1, 2, 0)
    return {"matmul": lambda: x @ others[0], "softmax": lambda: torch.softmax(x, 1),
            "layer norm": lambda: functional.layer_norm(x, x.shape[1:], *others)}[kernel.kind]()


@each_kind
def test_the_oracle_of_a_kernel_agrees_with_pytorch(kernel):
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    np.testing.assert_allclose(kernel_result(kernel, inputs), pytorch_result(kernel, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_space_has_several_sketches_distinct_values_and_tiles_that_fit(kernel):
    space, (spatial, reduced) = schedule_space(kernel), kernel_axes(kernel)
    assert space[0].name == "sketch" and len(space[0].values) >= 2
    assert len({choice.name for choice in space}) == len(space)
    for choice in space:
        assert len(set(choice.values)) == len(choice.values) > 1, choice.name
        assert not choice.ordered or list(choice.values) == sorted(choice.values), choice.name
    for code in np.random.default_rng(0).integers(dims_of(kernel), size=(50, len(space))):
        choices = schedule_choices(kernel, code)
        if "tile 0" in choices:
            tile, tiles, terms = kernel_tiles(kernel, choices)
            assert all(n % (size * count) == 0 for n, size, count in zip(spatial, tile, tiles))
            assert all(n % size == 0 for n, size in zip(reduced, terms))
            assert all(count <= choices[f"tiles {i}"] for i, count in enumerate(tiles))


def test_many_columns_that_fill_no_registers_may_be_left_to_the_compiler():
    for columns, widths, tiles in ((100, (1, 10, 20, 25, 50), (1, 2, 4, 5, 10, 20, 25, 50, 100)),
                                   (112, (8, 14, 16, 28, 56), (1, 2, 4, 8, 16, 32)),
                                   (50, (10, 25, 50), (1, 2, 4, 8, 16)), (67, None, (1, 67))):
        space = {choice.name: choice.values for choice in schedule_space(Kernel("a", "matmul", (3, columns, 6)))}
        assert (space.get("tile 1"), space["tiles 1"]) == (widths, tiles)
    row = {choice.name: choice.values for choice in schedule_space(Kernel("a", "matmul", (1, 100, 6)))}
    assert 1 not in row["tile 1"]                       # one row is a matter of memory, not of registers


def test_codes_outside_the_space_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^small softmax: codes are \[0, 9\]; expected one per choice, below \["):
        schedule_choices(SMALL["softmax"], [0, 9])
    with pytest.raises(ValueError, match="codes are"):
        schedule_choices(SMALL["softmax"], [-1] + [0] * (len(schedule_space(SMALL["softmax"])) - 1))


@pytest.mark.parametrize("name", network_names())
def test_every_layer_of_a_known_network_has_a_name_of_its_own_and_a_space(name):
    layers = network_layers(name)
    assert len({kernel.name for kernel, _ in layers}) == len({kernel for kernel, _ in layers}) == len(layers)
    for kernel, count in layers:
        assert count > 0 and np.prod(dims_of(kernel), dtype=float) > 500, kernel.name
        assert set(schedule_choices(kernel, [0] * len(dims_of(kernel)))) >= {"sketch", "threads", "unroll"}


def test_an_unknown_network_is_named_with_those_that_are_known():
    with pytest.raises(ValueError, match="^network is 'lenet'; expected one of alexnet, vgg16, resnet18, resnet50, "):
        network_layers("lenet")
    assert len(network_names()) >= 10


@each_kind
def test_pytorch_counts_as_many_multiplications(kernel):
    tensors = [torch.empty(shape, device="meta") for shape in input_shapes(kernel)]
    (call, _), *_ = pytorch_calls(kernel, tensors)
    with FlopCounterMode(display=False) as counter:
        call()
    counted = 3 * counter.get_total_flops() // 2 or 3 * math.prod(kernel.sizes)      # it counts none of a softmax
    assert multiplications(kernel, 3) == counted


def script_of_studies(project, name):
    """A program in notebooks/lab/studies as a module."""
    spec = importlib.util.spec_from_file_location(name, project / "notebooks" / "lab" / "studies" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tracer(project):
    return script_of_studies(project, "trace_networks")


def test_a_number_behind_a_search_is_its_number_of_measurements(project):
    measurer = script_of_studies(project, "measure_networks")
    assert measurer.named_searches(f"random; {RIVAL} 3000;{TWO_PARTS[1]} 100", 300) == [
        ("random", 300), (RIVAL, 3000), (TWO_PARTS[1], 100)]
    with pytest.raises(ValueError, match=f"^no search grid; there are {OURS}; {OURS}, carried over; "):
        measurer.named_searches("grid 5;random", 300)
    jobs = measurer.planned(["resnet18", "resnet50"], ["7x7 224"], [0, 5], [("random", 9), (RIVAL, 7)], 1, None, ())
    assert [[(job.strategy, job.measurements, job.seed) for job in same] for same in jobs] == [
        [("random", 9, seed), (RIVAL, 7, seed)] for seed in (0, 5)]
    with pytest.raises(ValueError, match="^no layer of bert, unet has 'conv 1x1' or '7x7' in its name$"):
        measurer.planned(["bert", "unet"], ["conv 1x1", "7x7"], [0], [("random", 9)], 1, None, ())
    for networks, taught in ((["resnet"], ()), (["bert"], ("resnet",))):
        with pytest.raises(ValueError, match="resnet.*resnet18"):
            measurer.planned(networks, [], [0], [(CARRIED, 9)], 1, None, taught)
    with pytest.raises(ValueError, match=f"^only the search {CARRIED} learns from other networks"):
        measurer.planned(["bert"], [], [0], [("random", 9)], 1, None, ("alexnet",))


def test_what_is_left_is_said_and_nothing_is_written(project, tmp_path, monkeypatch, capsys):
    measurer = script_of_studies(project, "measure_networks")
    monkeypatch.setattr(measurer, "TABLE", tmp_path / "races.csv")
    monkeypatch.setattr(measurer, "MEASURED", tmp_path / "measured.csv.gz")
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--layers", "softmax", "--seeds", "0,1",
                                      "--searches", "random", "--folder", str(tmp_path / "jobs"), "--only-left"])
    measurer.main()
    told = capsys.readouterr().out.splitlines()
    assert told == ["2 of 2 searches and 2 of 2 races left", *(f"  softmax 1536x128: {what}, seed {seed}" for what in (
        "random", "race") for seed in (0, 1))]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("args, wrong", [
    ("--measurements 0", "--measurements: '0'; expected a whole number of at least 1"),
    ("--seeds 0,x", "--seeds: 'x'; expected a whole number of at least 0"),
    ("--starts 0", "--starts: '0'; expected a whole number of at least 1"),
    ("--threads 1.5", "--threads: '1.5'; expected a whole number of at least 1"),
    ("--minutes nan", "--minutes: 'nan'; expected a number of at least 0"),
    ("--searches random;MetaSchedule_0", "no search MetaSchedule 0; there are "),
    ("", "spoiled.json: neither a search nor a race of layers; move it away")])
def test_a_wrong_number_or_file_is_named_before_anything_is_measured(project, tmp_path, monkeypatch, capsys, args,
                                                                     wrong):
    measurer = script_of_studies(project, "measure_networks")
    monkeypatch.setattr(measurer, "run_search", None)
    (tmp_path / "spoiled.json").write_text('{"kernel": "softm')
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--folder", str(tmp_path), "--only-left",
                                      *args.replace("_", " ").split(" ", 1)][:None if args else -1])
    with pytest.raises(SystemExit):
        measurer.main()
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize("place", ["mine", "usual"])
def test_two_commands_measure_neither_into_one_folder_nor_into_one_table(project, tmp_path, monkeypatch, capsys, place):
    measurer = script_of_studies(project, "measure_networks")
    monkeypatch.setattr(measurer, "FOLDER", tmp_path / "usual")
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--folder", str(tmp_path / "mine")])
    monkeypatch.setattr(measurer, "measure", None)
    with locked(tmp_path / place / "lock"), pytest.raises(SystemExit):
        measurer.main()
    said = capsys.readouterr().err
    assert f"another command (process {os.getpid()}) measures and holds {tmp_path / place / 'lock'}" in said


def test_a_search_that_fails_is_named_and_the_next_one_begins(project, tmp_path, monkeypatch, capsys):
    measurer, raced = script_of_studies(project, "measure_networks"), []
    for name, place in (("FOLDER", "jobs"), ("TABLE", "races.csv"), ("MEASURED", "measured.csv.gz")):
        monkeypatch.setattr(measurer, name, tmp_path / place)

    def search(job, folder):
        if job.strategy == "random" or job.kernel.kind == "softmax":
            raise NoScheduleRan("none of 9 schedules ran")
        return {"seconds": [2e-3, 1e-3], "elapsed": [1.0, 2.0]}

    def race(kernel, *about, **more):
        raced.append(kernel.name)
        return {"kernel": kernel.name, "entries": [{"strategy": "x", "measurements": 2, "again": [3e-3]}]}
    monkeypatch.setattr(measurer, "run_search", search)
    monkeypatch.setattr(measurer, "run_race", race)
    monkeypatch.setattr(measurer, "print_left", lambda *about: None)
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--layers", "softmax,norm,", "--folder",
                                      str(tmp_path / "jobs"), "--searches", "random;MetaSchedule"])
    with pytest.raises(SystemExit) as ended:
        measurer.main()
    told, said = capsys.readouterr()
    assert ended.value.code == 1 and said == "in 3 searches no schedule ran; the lines above say why\n"
    assert raced == ["layer norm 128x768"] and not (tmp_path / "races.csv").exists()       # this race has no file
    assert [line for line in told.splitlines() if "norm" in line] == [
        "note  layer norm 128x768: random: none of 9 schedules ran",
        "layer norm 128x768: MetaSchedule: 1.000 ms, 2 measurements, 2 s", "layer norm 128x768: x 2 3.000"]


@pytest.mark.parametrize("search, wrong", [(RIVAL, "this PyTorch sees no GPU: install a PyTorch with CUDA"),
                                           ("random", "the space of schedules of random is for CPUs; on a GPU")])
def test_a_gpu_that_is_not_there_is_missed_before_anything_is_written(project, tmp_path, monkeypatch, capsys, search,
                                                                      wrong):
    measurer = script_of_studies(project, "measure_networks")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--target", "cuda", "--searches", search,
                                      "--folder", str(tmp_path / "jobs")])
    with pytest.raises(SystemExit):
        measurer.main()
    assert wrong in capsys.readouterr().err and not list(tmp_path.iterdir())


def counted_flops(network, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return counter.get_total_flops()


def check_trace(tracer, name, network, x):
    """The table is the trace, and PyTorch counts as many products."""
    traced = [(layer_kernel(*layer), count) for layer, count in tracer.traced_layers(network, x).items()]
    assert traced == network_layers(name)
    products = sum(multiplications(*layer) for layer in traced if layer[0].kind not in ("softmax", "layer norm"))
    assert counted_flops(network, x) == 2 * products


def test_the_table_is_the_trace_of_the_networks_that_are_written_here(tracer):
    with torch.device("meta"):
        check_trace(tracer, "unet", tracer.UNet(), torch.empty(1, 3, 256, 256))
        check_trace(tracer, "bert", torch.nn.Sequential(*(tracer.EncoderLayer() for _ in range(12))),
                    torch.empty(128, 768))
        check_trace(tracer, "vit_b_32", tracer.VisionTransformer(), torch.empty(1, 3, 224, 224))


@pytest.mark.skipif(not importlib.util.find_spec("torchvision"), reason="torchvision is not installed")
def test_the_table_is_the_trace_of_the_networks_of_torchvision(tracer):
    networks = tracer.known_networks()
    assert list(networks) == network_names()
    for name, (network, x) in networks.items():
        check_trace(tracer, name, network, x)
    from torchvision import models
    with torch.device("meta"):
        theirs = models.vit_b_32()
    network, image = networks["vit_b_32"]
    assert sum(map(torch.numel, theirs.parameters())) == sum(map(torch.numel, network.parameters())) + 50 * 768
    assert counted_flops(network, image) == counted_flops(theirs, image)


@pytest.mark.parametrize("layer", [torch.nn.Conv2d(4, 4, 3, groups=2), torch.nn.Conv2d(4, 4, (1, 3)),
                                   torch.nn.Conv2d(4, 4, 3, dilation=2), torch.nn.ConvTranspose2d(4, 4, 3, 2)], ids=str)
def test_a_layer_without_a_kernel_is_refused(tracer, layer):
    with pytest.raises(ValueError, match="^no kernel for Conv.*; expected square taps, one stride, no dilation"):
        tracer.layer_row(layer, [torch.empty(1, 4, 9, 9)])


def test_a_transposed_convolution_is_the_matmul_of_the_table(tracer):
    layer, x = torch.nn.ConvTranspose2d(6, 5, 2, 2, bias=False), torch.randn(1, 6, 3, 4)
    kind, (rows, columns, depth), _, _ = tracer.layer_row(layer, [x])
    product = x[0].permute(1, 2, 0).reshape(rows, depth) @ layer.weight.permute(0, 2, 3, 1).reshape(depth, columns)
    theirs = layer(x)[0].reshape(5, 3, 2, 4, 2).permute(1, 3, 2, 4, 0).reshape(rows, columns)
    assert kind == "matmul"
    torch.testing.assert_close(product, theirs)


# measurements as tile files

def measured(kernel, c=12):
    codes = np.random.default_rng(1).integers(dims_of(kernel), size=(c, len(dims_of(kernel))))
    return codes, np.linspace(1e-4, 2e-4, c)


@each_kind
def test_a_tile_file_gives_back_what_was_measured(kernel, tmp_path):
    codes, seconds = measured(kernel)
    seconds[[2, 5]] = np.inf
    assert write_kernel_tile(tmp_path / "k.npz", kernel, codes, seconds, 0.03) == 10
    graph, kept = read_tile(tmp_path / "k.npz"), np.isfinite(seconds)
    assert graph.config_runtime.tolist() == np.rint(seconds[kept] * 1e9).astype(int).tolist()
    assert (graph.config_runtime_normalizers == 30_000_000).all()
    np.testing.assert_array_equal(graph.config_feat, schedule_features(kernel, codes[kept]))
    assert [p.name for p in tmp_path.iterdir()] == ["k.npz"]


def test_a_tile_file_has_the_keys_and_dtypes_of_the_data_set(tmp_path, tiny_sample):
    write_kernel_tile(tmp_path / "k.npz", SMALL["conv2d"], *measured(SMALL["conv2d"]), 0.03)
    theirs = next((tiny_sample / "npz/tile/xla/train").glob("*.npz"))
    with np.load(tmp_path / "k.npz") as ours, np.load(theirs) as official:
        assert {n: ours[n].dtype for n in ours.files} == {n: official[n].dtype for n in official.files}
        assert all(ours[name].shape[1:] == official[name].shape[1:] for name in official.files)


def test_a_tile_file_without_a_runtime_is_refused(tmp_path):
    codes, _ = measured(SMALL["matmul"], 3)
    with pytest.raises(ValueError, match="^small matmul: none of 3 schedules has a runtime; a tile file needs one$"):
        write_kernel_tile(tmp_path / "k.npz", SMALL["matmul"], codes, [np.inf] * 3, 0.03)
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_exceeds_the_limit_without_a_schedule_has_its_slowest_schedule_as_normaliser(tmp_path):
    codes, seconds = measured(SMALL["matmul"])
    write_kernel_tile(tmp_path / "k.npz", SMALL["matmul"], codes, seconds, np.inf)
    graph = read_tile(tmp_path / "k.npz")
    assert (graph.config_runtime_normalizers == graph.config_runtime.max()).all() and graph.config_runtime.max() > 0


@each_kind
def test_a_kernels_graph_ends_in_its_root_and_uses_every_input(kernel):
    graph = kernel_graph(kernel)
    names = [OPCODE_NAMES[op] for op in graph["node_opcode"]]
    assert graph["node_feat"][:, 0].tolist() == [0] * (len(names) - 1) + [1]
    consumed = set(graph["edge_index"][:, 1])
    assert consumed == set(range(len(names) - 1)) and (graph["edge_index"][:, 0] > graph["edge_index"][:, 1]).all()
    assert names.count("parameter") == len(kernel_inputs(kernel, np.random.default_rng(0)))


def test_features_say_what_a_schedule_of_a_matmul_says():
    kernel, space = SMALL["matmul"], schedule_space(SMALL["matmul"])
    wish = {"sketch": "tile first, packed", "threads": "first loop", "unroll": 64, "tile 0": 2, "tile 1": 8,
            "tiles 0": 4, "tiles 1": 2, "terms 0": 3}
    code = [choice.values.index(wish[choice.name]) if choice.name in wish else 0 for choice in space]
    row = schedule_features(kernel, [code])[0]
    assert row[:8].tolist() == [3, 1, 1, 2, 3, 0, 10, 18]              # sketch, two orders, threads, unroll, from 1
    assert row[8:16].tolist() == [8, 16, 0, 0, 0, 0, 24, 128]
    assert row[16:].tolist() == [2, 8, 3, 0, 0, 0, 13, 48]


@each_kind
def test_different_schedules_have_different_features_unless_their_tiles_are_the_same(kernel):
    codes = np.unique(measured(kernel, 40)[0], axis=0)
    features = schedule_features(kernel, codes)
    same = [(a, b) for a in range(len(codes)) for b in range(a) if (features[a] == features[b]).all()]
    for a, b in same:
        one, other = (schedule_choices(kernel, codes[i]) for i in (a, b))
        assert {name for name in one if one[name] != other[name]} <= {"tiles 0", "tiles 1", "tiles 2"}


def test_a_models_cost_of_a_schedule_does_not_depend_on_what_else_is_asked(tmp_path):
    kernel = SMALL["conv2d"]
    codes, seconds = measured(kernel)
    write_kernel_tile(tmp_path / "k.npz", kernel, codes, seconds, 0.03)
    model = TileModel()
    model.fit_scale([read_tile(tmp_path / "k.npz")])
    cost = kernel_cost(model, kernel)
    together = cost(codes)
    assert together.shape == (12,) and len(np.unique(together)) > 1
    np.testing.assert_allclose([cost(codes[i:i + 1])[0] for i in range(12)], together, rtol=1e-5)


# the study's table

def drawn_study(kernel="a", ours=1.0, rival=1.0, seconds=(5.0, 9.0)):
    again = {OURS: ours, RIVAL: rival, "untuned": 100.0, "random": 1.2}
    found = {name: {"measurements": 10, "seconds": seconds[name == RIVAL], "best": 1e-3 * value,
                    "again": [1e-3 * value * drift for drift in (1.0, 1.5, 1.1)]} for name, value in again.items()}
    machine = {"cpu": "a CPU", "threads": 1, "tvm": "0", "date": "1970-01-01"}
    return {"kernel": kernel, "found": found, "machine": machine,
            "curves": {OURS: [[1.0, 2.0], [2e-3, 1e-3]], RIVAL: [[1.0, 9.0], [3e-3, 1e-3]]}}


@pytest.mark.parametrize("ours, verdict", [(1.04, "tie"), (0.96, "tie"), (1.06, "slower"), (0.94, "faster")])
def test_gaps_below_5_percent_are_ties_and_a_drift_of_the_machine_does_not_count(ours, verdict):
    row = study_table([drawn_study(ours=ours)]).set_index("strategy").loc[OURS]
    assert row["verdict"] == verdict and row["ratio"] == pytest.approx(ours) and row["ms"] == pytest.approx(1.1 * ours)


def test_the_summary_counts_kernels_by_verdict_and_time():
    table = study_table([drawn_study("a", 0.9), drawn_study("b", 1.0), drawn_study("c", 1.0, seconds=(20.0, 9.0)),
                         drawn_study("d", 1.2)])
    with_model = table[table["strategy"] == OURS].assign(strategy=CARRIED, verdict="faster")
    assert study_summary(pd.concat([table, with_model])).startswith(
        f"{CARRIED} with 10 measurements against MetaSchedule with 10: faster on 4, a tie on 0, slower on 0 of 4")
    assert study_summary(table) == (
        "explore then droplet with 10 measurements against MetaSchedule with 10: faster on 1, a tie on 2, slower on 1 "
        "of 4 kernels; no slower and found in less time on 2; searches took 35 s and 36 s")


def test_a_network_is_summed_over_its_measured_layers_as_often_as_it_has_them():
    table = study_table([drawn_study("a", 2.0, 3.0), drawn_study("b", 10.0, 20.0)])
    assert network_summary(table, {"a": 2, "b": 1}) == (
        f"{OURS} {1.1 * (2 * 2 + 10):.3g} ms, {RIVAL} {1.1 * (2 * 3 + 20):.3g} ms")


def test_kernels_whose_times_differ_between_rounds_are_named():
    steady, shaken = drawn_study("a"), drawn_study("b")
    for one in steady["found"].values():
        one["again"] = [1.0, 1.0, 1.1]
    steady["found"]["untuned"]["again"] = [1.0, 1.0, 9.0]
    assert unsteady(study_table([steady, shaken])) == ["b"]


def test_pictures_show_every_kernel_and_search():
    studies = [drawn_study("a"), drawn_study("b")]
    ax = draw_study(study_table(studies), title="t")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a\nuntuned: 100 x", "b\nuntuned: 100 x"]
    assert OURS in ax.get_legend_handles_labels()[1]
    assert len(draw_curves(studies[0]).lines) == 2
    studies[1]["found"]["untuned"]["again"] = [np.inf] * 3           # as the largest layers of VGG-16
    table = study_table(studies)
    assert np.isinf(table.set_index(["kernel", "strategy"]).loc[("b", "untuned"), ["ms", "low", "high", "ratio"]]
                    .to_numpy(float)).all()
    assert draw_study(table).get_yticklabels()[1].get_text() == "b\nuntuned: exceeds the limit"
    far = draw_study(study_table([drawn_study("a", 12.9), drawn_study("b", np.inf), drawn_study("c", 3.1)]))
    assert [text.get_text() for text in far.texts] == ["13 x", "exceeds the limit", "3 x"]
    assert max(line.get_xdata().max() for line in far.lines if len(line.get_xdata()) == 3) == 3


# without TVM

def test_after_its_minutes_a_study_begins_no_other_kernel_and_goes_on_when_called_again(tmp_path, monkeypatch):
    begun, lines = [], []

    def new_study(kernel, settings, tile_name, *tools):
        begun.append(kernel.name)
        codes, seconds = measured(kernel)
        return drawn_study(kernel.name) | {"codes": codes.tolist(), "runtimes": seconds.tolist(), "untuned": 0.03,
                                           "file": tile_name}
    monkeypatch.setattr("lab.kernels.study._new_study", new_study)
    monkeypatch.setattr("lab.kernels.study._opened_tools", lambda *about: ("a tuner", "a lab"))
    three = [SMALL[kind] for kind in ("matmul", "softmax", "conv2d")]
    names = [kernel.name for kernel in three]
    for call in range(1, 4):
        found, left = study_kernels(three, tmp_path, minutes=0, report=lines.append)
        assert [study["kernel"] for study in found] == begun == names[:call] and left == names[call:]
    assert study_kernels(three, tmp_path, report=lines.append) == (found, []) and begun == names
    (tmp_path / "fresh").mkdir()
    assert len(study_kernels(three, tmp_path / "fresh", minutes=5)[0]) == 3
    monkeypatch.setattr("lab.kernels.study.tvm_version", lambda: "another")
    assert study_kernels(three, tmp_path, minutes=0, report=lines.append)[1] == names[1:] and lines == []


def test_a_kernel_without_a_schedule_that_runs_is_left_out_and_not_tried_again(tmp_path, monkeypatch):
    three, failing, begun, lines = [SMALL[kind] for kind in ("matmul", "softmax", "conv2d")], {"small matmul"}, [], []

    def searched(tuner, lab, settings, report):
        begun.append(lab.kernel.name)
        raise NoScheduleRan("none of 9 schedules ran") if lab.kernel.name in failing else KeyboardInterrupt

    def open_tools(stack, kernel, *about):
        lab = SimpleNamespace(kernel=kernel)
        lab.turn_to = lambda kernel: setattr(lab, "kernel", kernel)
        return "tuner", lab
    monkeypatch.setattr("lab.kernels.study._searched", searched)
    monkeypatch.setattr("lab.kernels.study._opened_tools", open_tools)
    for _ in range(2):                                       # interrupted in the second kernel, both times
        with pytest.raises(KeyboardInterrupt):
            study_kernels(three, tmp_path, report=lines.append)
    assert begun == ["small matmul", "small softmax", "small softmax"]
    record, = tmp_path.iterdir()
    assert lines == ["note  small matmul is left out: none of 9 schedules ran; to try again, remove "
                     f"{record}"] * 2
    failing |= {kernel.name for kernel in three}
    assert study_kernels(three, tmp_path, minutes=0, report=lines.append) == ([], ["small conv2d"])
    assert begun[3:] == ["small softmax"]                    # its time counts, too
    with pytest.raises(RuntimeError, match="^small matmul is left out: none of 9 schedules ran; to try again, remove"):
        study_kernels(three, tmp_path, minutes=0, report=lines.append)
    assert begun[4:] == ["small conv2d"]


@pytest.mark.skipif(sys.platform == "win32", reason="candidates are forked processes")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_while_a_candidate_of_a_race_is_measured_the_others_stand_still(monkeypatch):
    context, team = multiprocessing.get_context("fork"), []
    pids = context.Array("i", 3)

    def candidate(pipe, expected):
        while True:
            pipe.recv()
            others, until = [psutil.Process(pid) for pid in pids if pid != os.getpid()], time.monotonic() + 5
            while (moving := sum(other.status() != psutil.STATUS_STOPPED for other in others)) > expected:
                if time.monotonic() > until:                 # a busy machine stops a process some time after the signal
                    break
                time.sleep(0.01)
            pipe.send((float(moving), ""))
            expected = 0
    for place in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=candidate, args=(theirs, 2 - place), daemon=True)
        process.start()
        pids[place] = process.pid
        team.append(kernel_lab._Candidate(process, ours, 0.0))
    monkeypatch.setattr(kernel_lab, "_compiled", lambda *about: team)
    answers = kernel_lab.time_batch(["a", "b", "c"], 3, np.inf, 1, 10)
    moving = [[seconds for seconds, fault in row] for row in answers]
    assert moving == [[2, 1, 0], [0] * 3, [0] * 3]           # before its first turn, a candidate only waits
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.skipif(sys.platform == "win32", reason="candidates are forked processes")
def test_a_candidate_that_died_while_it_waited_fails_alone_and_no_process_is_left(monkeypatch):
    context, team = multiprocessing.get_context("fork"), []

    def candidate(pipe):
        while True:
            pipe.recv()
            pipe.send((1.0, ""))
    for _ in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=candidate, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        team.append(kernel_lab._Candidate(process, ours, 0.0))
    pids = [one.process.pid for one in team]
    team[1].process.kill()
    team[1].process.join()                                   # as multiprocessing does when it starts another process
    monkeypatch.setattr(kernel_lab, "_compiled", lambda *about: team)
    alive = (1.0, "")
    assert kernel_lab.time_batch(["a", "b", "c"], 2, np.inf, 1, 10) == [[alive, (np.inf, "running crashed"), alive]] * 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_without_tvm_one_sentence_says_what_to_install(monkeypatch, project):
    monkeypatch.setattr(kernel_lab, "has_tvm", lambda: False)
    with pytest.raises(ImportError, match="^kernels need TVM, which the kit does not install: pip install -r note"):
        KernelLab(SMALL["matmul"])
    assert (project / kernel_lab.INSTALL.split()[-1]).is_file()


# with TVM

@pytest.fixture(scope="module")
def labs():
    """{kind: KernelLab of the small kernel}, each started once."""
    opened = {}

    def lab(kind):
        if kind not in opened:
            opened[kind] = KernelLab(SMALL[kind])
        return opened[kind]
    yield lab
    for one in opened.values():
        one.close()


def tvm_test(test):
    for mark in needs_tvm:
        test = mark(test)
    return test


@tvm_test
@pytest.mark.parametrize("kind", SMALL)
def test_every_sketch_and_schedules_drawn_at_random_compute_what_numpy_does(kind, labs):
    dims = dims_of(SMALL[kind])
    codes = np.random.default_rng(0).integers(dims, size=(2 * dims[0] + 8, len(dims)))
    codes[:2 * dims[0], 0] = np.repeat(np.arange(dims[0]), 2)
    answers = labs(kind).measure([None, *map(tuple, codes)])
    assert [fault for _, fault in answers] == [""] * len(answers)
    assert all(0 < seconds < np.inf for seconds, _ in answers)


@tvm_test
@pytest.mark.parametrize("kind", ["conv2d", "softmax"])
def test_every_choice_changes_the_program(kind):
    def programs(line):
        from lab.kernels.schedules import schedule_kernel
        kernel, found = SMALL[kind], {}
        for i, choice in enumerate(schedule_space(kernel)):
            code = [int(other.name.startswith("tiles")) for other in schedule_space(kernel)]
            code[i] = 0
            texts = [schedule_kernel(kernel, code).script()]
            code[i] = len(choice.values) - 1
            found[choice.name] = texts + [schedule_kernel(kernel, code).script()]
        line.send(found)
    child = kernel_lab.TvmChild(programs, 1)
    found = child.hear()
    child.close()
    assert {name for name, (one, other) in found.items() if one == other} == set()


@tvm_test
def test_a_lab_is_an_objective_and_remembers_its_trials(labs):
    lab, kernel = labs("matmul"), SMALL["matmul"]
    lab.begin()
    result = explore_then_droplet(lab, dims_of(kernel), 12, np.random.default_rng(0))
    known, seconds, codes = zip(*lab.trials)
    assert result.measurements == len(lab.trials) == 12 and list(known) == sorted(known)
    assert result.best_cost == min(seconds) and tuple(result.best) == codes[int(np.argmin(seconds))]


def stack_pointer():
    return int(Path("/proc/self/syscall").read_text().split()[-2], 16)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="only there is this file known")
def test_a_measurement_runs_at_each_alignment_of_the_stack():
    for _ in range(20):                          # calls of Python become shorter when they are repeated
        pointers = [kernel_lab._aligned(count, stack_pointer) for count in kernel_lab.ARGUMENTS]
    assert len({pointer % 64 for pointer in pointers}) == 4 and len({pointer % 16 for pointer in pointers}) == 1


@pytest.mark.parametrize("once", [1e-6, 2e-3, 0.008, 0.012, 0.1])
def test_a_time_is_the_mean_over_alignments_of_the_shortest_of_several_runs(once):
    rest, drawn = [], np.random.default_rng(0)

    def seconds(number, repeat):
        rest.append((number, [once * drawn.uniform(1, 2) for _ in range(repeat)]))
        return rest[-1][1]
    first = once * drawn.uniform(1, 2)
    found = kernel_lab._typical(kernel_lab._Timer(None, seconds), first, 0.03)
    if once > 0.03:
        assert not rest and found == first
        return
    assert found == pytest.approx(np.mean([min(took) for _, took in rest]))
    spent = sum(number * len(took) * first for number, took in rest)           # if all runs take as long as the first
    assert 0.015 < spent <= 0.033 and 1 <= len(rest) <= 4 and len({len(took) for _, took in rest}) == 1
    assert len(rest) == 4 or len(rest[0][1]) == 1


@tvm_test
def test_winners_are_measured_in_turns(labs):
    rounds = labs("matmul").measure_rounds([None, (0,) * len(dims_of(SMALL["matmul"])), (99,)], 3)
    assert rounds.shape == (3, 3) and np.isfinite(rounds[:, :2]).all() and np.isinf(rounds[:, 2]).all()


def misbehave(line, kernel):
    """In the child: four candidates, of which one crashes, one hangs, and one computes something else."""
    import tvm  # noqa: F401 - once, for all forked processes, whose limits are short
    inputs = kernel_inputs(kernel, np.random.default_rng(0))
    known, right = kernel_result(kernel, inputs), kernel_lab.schedule_kernel
    deeds = {"crash": lambda: os.abort(), "hang": lambda: time.sleep(60)}
    kernel_lab.schedule_kernel = lambda kernel, job: deeds[job[0]]() if job[0] in deeds else right(kernel, job)
    codes = (0,) * len(dims_of(kernel))
    line.send([kernel_lab.time_batch([("crash",), ("hang",), codes], 1, np.inf, 8.0, 15.0, kernel, inputs, known, None),
               kernel_lab.time_batch([codes], 1, np.inf, 30.0, 30.0, kernel, inputs, known + 1, None)])


@tvm_test
def test_a_candidate_that_crashes_hangs_or_is_wrong_costs_infinity_and_spoils_no_other():
    child = kernel_lab.TvmChild(misbehave, 1, SMALL["matmul"])
    ((crash, hang, fine),), ((wrong,),) = child.hear()
    child.close()
    assert crash == (np.inf, "compiling crashed")
    assert hang == (np.inf, "compiling took longer than its limit")
    assert fine[0] < np.inf and fine[1] == ""
    assert wrong == (np.inf, "the result is wrong by 1.0e+00")


def assemble(line, kernel, codes):
    """In the child: the machine code of a schedule for two types of x86-64 CPUs."""
    import tvm
    built = [tvm.compile(kernel_lab.schedule_kernel(kernel, codes), kernel_lab.kernel_target(1, target))
             for target in ("x86-64-v3", "x86-64-v4")]
    line.send([one.mod.inspect_source("asm") for one in built])


@tvm_test
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names types of x86-64 CPUs")
def test_kernels_are_compiled_for_the_type_of_cpu_that_is_asked_for():
    kernel = SMALL["matmul"]
    codes = tuple(int(choice.name == "tile 1") for choice in schedule_space(kernel))         # vectors of 16 numbers
    child = kernel_lab.TvmChild(assemble, 1, kernel, codes)
    without, wide = child.hear()
    child.close()
    assert "zmm" not in without and "ymm" in without and "zmm" in wide      # registers of AVX-512, and of AVX2
    with closing(KernelLab(kernel, target="x86-64-v3")) as lab:
        (seconds, fault), = lab.measure([codes])
    assert fault == "" and seconds < np.inf
    assert kernel_lab.processor_name("x86-64-v3") == f"{kernel_lab.processor_name()}, kernels for x86-64-v3"


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="only Linux tells the family of a CPU there")
def test_a_cpu_is_named_with_its_family_where_that_is_known(monkeypatch):
    text = Path("/proc/cpuinfo").read_text()
    told = [re.search(rf"^{key}\s*: (\d+)$", text, re.MULTILINE) for key in ("cpu family", "model")]
    name = processor_name()
    assert all(told) == ("(family" in name)
    if all(told):
        assert name.endswith(f" (family {told[0][1]}, model {told[1][1]})") and len(name) > 24
    monkeypatch.setattr(kernel_lab, "cpu_fields", dict)
    assert processor_name() == name.partition(" (family")[0]


@tvm_test
@pytest.mark.parametrize("target", ["x86-64-v9", "CUDA"])
def test_a_target_that_llvm_does_not_know_is_refused(target):
    for start in (lambda: KernelLab(SMALL["matmul"], target=target),
                  lambda: Tuner(target=target).wait()):
        with pytest.raises(RuntimeError, match=f"ValueError: target is '{target}'; expected 'cuda' for the GPU, or"):
            start()


@tvm_test
def test_a_search_whose_schedules_all_fail_says_why_and_is_not_kept(tmp_path, monkeypatch):
    class WithoutTime(KernelLab):
        """No candidate has time to be compiled."""

        def __init__(self, *about):
            super().__init__(*about, build_limit=0.0)
    monkeypatch.setattr("lab.kernels.layer_study.KernelLab", WithoutTime)
    with pytest.raises(RuntimeError, match="^none of 3 schedules of small matmul ran: compiling took longer than its "):
        run_search(SearchJob(SMALL["matmul"], "random", 3), tmp_path)
    assert not list(tmp_path.iterdir())


def fail(line):
    raise OSError("no space left")


@tvm_test
def test_a_child_that_ends_is_named_with_its_last_words_and_leaves_no_process():
    child = kernel_lab.TvmChild(fail, 1)
    with pytest.raises(RuntimeError, match="^the process with TVM ended by itself: OSError: no space left$"):
        child.hear()
    assert child.process.poll() is not None


@tvm_test
def test_metaschedule_is_measured_by_the_same_lab_and_its_modules_can_be_measured_again(labs):
    with closing(Tuner()) as tuner:
        for kind, more in (("batch matmul", {"droplet": 4}), ("softmax", {"descent": 4}),
                           ("softmax", {"evolve": False})):
            meta = tuner.tune(labs(kind), 8, **more)
            assert len(meta.seconds) == len(meta.elapsed) == len(meta.jobs) >= 8 and (np.diff(meta.elapsed) >= 0).all()
            (seconds, fault), = labs(kind).measure([meta.jobs[int(meta.seconds.argmin())]])
            assert fault == "" and seconds < np.inf            # and the lab found its result to be this kernel's


@tvm_test
def test_a_study_is_written_once_read_afterwards_and_taught_from(tmp_path, monkeypatch):
    lines, kernel, other = [], SMALL["matmul"], SMALL["softmax"]
    (study, second), left = study_kernels([kernel, other], tmp_path, 6, 8, 2, report=lines.append)
    assert [study["kernel"], second["kernel"]] == [kernel.name, other.name] and len(lines) == 18 and left == []
    assert len(second["codes"][0]) == len(dims_of(other))
    table = study_table([study]).set_index("strategy")
    assert len(table) == 9 and (table["ms"] > 0).all() and table.loc[PYTORCH, "measurements"] == 0
    for name in table.index:
        codes = list(map(int, table.loc[name, "schedule"].split()))
        assert bool(codes) == (name in (OURS, CARRIED, "random"))
        if codes:                                            # what is told is what was measured
            assert codes in study["codes"] or name != "random"
            assert schedule_choices(kernel, codes)
    equal = [OURS, CARRIED, "random", f"{RIVAL} and its Droplet", f"{RIVAL}, as many"]
    assert (table["measurements"].loc[equal] == 6).all()
    studies = [study, second]
    learned = learn_and_search(studies, {k.name: k for k in (kernel, other)}, tmp_path, 3, 50, 5, report=lines.append)
    assert learned.shape == (2, 5) and np.isfinite(learned.drop(columns="kernel")).all(axis=None)
    alone = learn_and_search(studies, {other.name: other}, tmp_path, 3, 50, 5, report=lines.append)
    assert alone["kernel"].tolist() == [other.name] and {*alone} == {*learned}       # taught by both, measured alone
    monkeypatch.setattr("lab.kernels.study.Tuner", None)
    assert study_kernels([kernel, other], tmp_path, 6, 8, 2) == (studies, [])
    tile = tmp_path / study["file"]
    assert len(read_tile(tile).config_runtime) == 6
    whole = tile.read_bytes()
    for damage in (lambda: tile.unlink(), lambda: tile.write_bytes(b"cut")):
        damage()
        with pytest.raises(DataError):
            learn_and_search(studies[:1], {kernel.name: kernel}, tmp_path, 3, 50, 5)
        assert study_kernels([kernel], tmp_path, 6, 8, 2) == ([study], []) and tile.read_bytes() == whole
    record = tile.with_suffix(".json")
    for text in (record.read_text()[:200], "[]", "{}", "null", '{"kernel": "matmul"}'):
        record.write_text(text)
        with pytest.raises(TypeError, match="NoneType"):             # it measures: the Tuner of above is called
            study_kernels([kernel], tmp_path, 6, 8, 2, report=lines.append)
        assert lines[-1] == f"note  {record} is not a whole study; {kernel.name} is measured again"


@tvm_test
def test_a_run_that_was_killed_or_whose_time_is_over_goes_on_and_measures_nothing_twice(tmp_path, project):
    """As a user would: run.py with notebook 08 on three layers, killed when the first is measured; no time for more."""
    names = ["softmax 512x768", "layer norm 512x768", "batch matmul 12x128x128x64"]
    command = [sys.executable, "notebooks/run.py", "--only", "08", "--size", "tiny", "--out", str(tmp_path / "out"),
               "--data-root", str(write_sample(tmp_path / "sample", size="tiny")), "-p", f"kernels={names}",
               "-p", "minutes=0", "-p", "budget=3", "-p", "trials=3", "-p", "rounds=1", "-p", "threads=1",
               "-p", "steps=2", "-p", "proposals=1"]

    def measured_files():
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "kernels").glob("*.json")}

    log = tmp_path / "log.txt"
    with open(log, "w") as file:
        first = subprocess.Popen(command, cwd=project, stdout=file, stderr=file, start_new_session=True)
        while first.poll() is None and not measured_files():
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL, log.read_text()
    before = measured_files()
    assert len(before) == 1
    again = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=500)
    said = again.stdout + again.stderr
    assert again.returncode == 3 and f"to be continued: 08_kernels ({names[2]})" in said, said
    assert before.items() <= measured_files().items() and len(measured_files()) == 2
    assert len(list((tmp_path / "out" / "kernels").glob("*.npz"))) == 2
    assert (tmp_path / "out" / "report.html").is_file() and not list((tmp_path / "out").glob("aside/*/kernels/*"))


def decide(line, kernels, gpu=False):
    """In the child: for each kernel, the space of each of MetaSchedule's sketches, and what random codes decide."""
    import tvm

    from lab.kernels.definitions import kernel_function
    metaschedule.without_other_intrinsics("cuda" if gpu else None)
    from tvm.s_tir import meta_schedule as ms
    target = tvm.target.Target("nvidia/nvidia-t4") if gpu else kernel_lab.kernel_target(1)
    contexts = [ms.TuneContext(tvm.IRModule({"main": kernel_function(kernel)}), target=target,
                               space_generator="post-order-apply", search_strategy="replay-trace", task_name="main")
                for kernel in kernels]
    rng = np.random.default_rng(0)
    line.send([[decided(TraceSpace(sketch.trace, context.mod, context), rng)
                for sketch in context.generate_design_space()] for context in contexts])


def decided(space, rng):
    """(are the decisions of a trace those of its codes, are they all, cuts of random codes, extents, the module)."""
    import tvm
    chosen = {step: decision for step, decision in space.decisions(space.start)}
    same = all(list(map(int, space.trace.decisions[step])) == decision if isinstance(decision, list) else
               int(space.trace.decisions[step]) == decision for step, decision in chosen.items())
    drawn = [[decision for _, decision in space.decisions(rng.integers(space.dims)) if isinstance(decision, list)]
             for _ in range(3)]
    return (same, len(chosen) == len(space.trace.decisions), drawn,
            [math.prod(decision) for decision in chosen.values() if isinstance(decision, list)],
            None if (module := space.scheduled(space.start)) is None else tvm.ir.save_json(module))


@tvm_test
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_codes_of_a_trace_are_its_decisions_and_any_codes_cut_the_same_extents(gpu, labs):
    kinds = "conv2d", "softmax"
    child = kernel_lab.TvmChild(decide, 1, [SMALL[kind] for kind in kinds], gpu)
    found = dict(zip(kinds, child.hear()))
    child.close()
    for same, every, drawn, extents, _ in sum(found.values(), []):
        assert same and every and all([math.prod(cut) for cut in cuts] == extents for cuts in drawn)
    modules = {kind: [module for *_, module in sketches] for kind, sketches in found.items()}
    if gpu:                                              # of a convolution, it rejects nearly all codes
        assert modules["softmax"] and all("threadIdx.x" in module for module in modules["softmax"])
        return
    for kind in kinds:
        answers = labs(kind).measure([module for module in modules[kind] if module])
        assert answers and all(fault == "" for _, fault in answers)


def schedule_for_a_gpu(line, kernels):
    """In the child: TVM's default schedules for a GPU, lowered, without a GPU."""
    import tvm

    from lab.kernels.definitions import kernel_function
    target = tvm.target.Target("nvidia/nvidia-t4")
    line.send([kernel_lab._default_schedule(tvm.IRModule({"main": kernel_function(kernel)}), target).script()
               for kernel in kernels])


@tvm_test
def test_an_untuned_kernel_has_threads_on_a_gpu():
    child = kernel_lab.TvmChild(schedule_for_a_gpu, 1, [*SMALL.values()])
    scripts = child.hear()
    child.close()
    assert len(scripts) == len(SMALL) and all("threadIdx.x" in script for script in scripts)


def descend(line, kernel, free_rejects):
    """In the child: what a descent from three traces measures with a budget of 10, if most codes are rejected."""
    import tvm

    from lab.kernels import traces
    from lab.kernels.definitions import kernel_function
    metaschedule.without_other_intrinsics()
    from tvm.s_tir import meta_schedule as ms
    module = tvm.IRModule({"main": kernel_function(kernel)})
    context = ms.TuneContext(module, target=kernel_lab.kernel_target(1), space_generator="post-order-apply",
                             search_strategy="replay-trace", task_name="main")
    sketches, rng, asked, right = context.generate_design_space(), np.random.default_rng(0), [], TraceSpace.scheduled
    seen = []

    def fussy(space, codes):
        seen.append(tuple(codes))
        return right(space, codes) if np.random.default_rng(codes).random() < 0.5 else None

    def measure(jobs):
        asked.append(list(jobs))
        return rng.random(len(jobs)).tolist()
    TraceSpace.scheduled = fussy
    traces.descend_traces([sketch.trace for sketch in sketches], module, context, measure, 10, rng, free_rejects)
    line.send((asked, len(seen)))


@tvm_test
@pytest.mark.parametrize("free_rejects", [False, True])
def test_a_descent_keeps_to_its_budget_and_counts_rejected_codes_unless_they_are_free(free_rejects):
    child = kernel_lab.TvmChild(descend, 1, SMALL["conv2d"], free_rejects)
    asked, seen = child.hear()
    child.close()
    jobs = [job for batch in asked for job in batch]
    assert len(jobs) == len(set(jobs))
    assert (len(jobs) == 10 and seen > 10) if free_rejects else (len(jobs) < 10 and seen == 10)


def test_a_gpu_is_named_or_missed_and_takes_no_search_in_our_space(project, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="^the target is cuda, and this PyTorch sees no GPU: install .* leave the"):
        processor_name("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a {device.type} card")
    assert processor_name("cuda") == "a cuda card"
    planned = script_of_studies(project, "measure_networks").planned
    with pytest.raises(ValueError, match="^the target is cuda, and the space of schedules of random; explore then "
                       "droplet is for CPUs; on a GPU, choose searches of MetaSchedule's space$"):
        planned(["bert"], [""], [0], [("random", 4), (OURS, 4), (RIVAL, 4)], 1, "cuda", ())
    for start in (lambda: study_kernels([SMALL["matmul"]], tmp_path, target="cuda"),
                  lambda: run_search(SearchJob(SMALL["matmul"], "random", 4, target="cuda"), tmp_path)):
        with pytest.raises(ValueError, match="the space of schedules of random"):
            start()
    assert not list(tmp_path.iterdir())
    assert all(job.target == "cuda" for jobs in planned(["bert"], [""], [0], [(RIVAL, 4)], 1, "cuda", ())
               for job in jobs)


def layer_of(network, name):
    """A layer of a known network by its name."""
    found, = (kernel for kernel, _ in network_layers(network) if kernel.name == name)
    return found


class DrawnLab:
    """In the place of KernelLab: everything takes seven seconds."""

    def __init__(self, kernel, threads, target):
        self.seconds = 7.0

    def close(self):
        """Nothing is open."""

    def measure_rounds(self, jobs, rounds):
        return np.full((rounds, len(jobs)), self.seconds)

    def measure(self, jobs):
        return [(self.seconds, "")] * len(jobs)


@tvm_test
def test_searches_and_races_are_written_once_and_read_afterwards(tmp_path, monkeypatch):
    kernel = SMALL["batch matmul"]
    taught = layer_of("bert", "batch matmul 12x128x64x128")
    run_search(SearchJob(taught, "random", 4), tmp_path)
    run_search(SearchJob(kernel, "random", 3), tmp_path)                  # shorter than the next: not in the race
    run_search(SearchJob(kernel, TWO_PARTS[1], 3), tmp_path)              # shorter, too, but it begins otherwise
    monkeypatch.setattr("lab.kernels.carried.MEASURED", tmp_path / "measured.csv.gz")
    measured_table(tmp_path).to_csv(tmp_path / "measured.csv.gz", index=False)
    jobs = [SearchJob(kernel, search, 6, taught=("bert",) * (search == CARRIED)) for search in SEARCHES]
    found = [run_search(job, tmp_path) for job in jobs]
    counts = {search: len(one["seconds"]) for search, one in zip(SEARCHES, found)}
    assert {counts[search] for search in set(SEARCHES) - set(TWO_PARTS)} == {6} and all(one["winners"] for one in found)
    assert all(2 <= counts[search] <= 6 for search in TWO_PARTS)          # a descent ends where no neighbour is better
    taughts = {search: one.get("taught") for search, one in zip(SEARCHES, found)}
    assert taughts[CARRIED] == [taught.name] and taughts[OURS] == taughts["random"] == []
    assert starts_left(kernel, 0, 1, tmp_path) == 3
    race = run_race(kernel, 0, 1, tmp_path, 2)
    assert [starts_left(kernel, 0, 1, tmp_path, starts=starts) for starts in (1, 3, 5)] == [0, 0, 2]
    entries = {(one["strategy"], one["measurements"]): one for one in race["entries"]}
    names = {search: search for search in SEARCHES} | {CARRIED: f"{CARRIED}, taught bert"}
    assert entries.keys() == {(name, 6) for name in names.values()} | {
        (TWO_PARTS[1], 3), ("untuned", 0), ("PyTorch", 0)}
    assert len(entries) == len(race["entries"]) and np.isfinite([one["again"][0] for one in race["entries"]]).all()
    plain = found[SEARCHES.index("random")]
    assert tuple(entries["random", 6]["schedule"]) == tuple(plain["codes"][int(np.argmin(plain["seconds"]))])
    tried = Trials(np.array(found[0]["seconds"]), None, [*map(tuple, found[0]["codes"])])
    assert tuple(entries[OURS, 6]["schedule"]) == tried.winner(3)[0]
    monkeypatch.setattr("lab.kernels.layer_study.KernelLab", None)
    assert [run_search(job, tmp_path) for job in jobs] == found and run_race(kernel, 0, 1, tmp_path, 2) == race
    table = race_table(tmp_path)
    assert len(table) == len(entries) and set(table["cpu"]) == {race["machine"]["cpu"]}
    monkeypatch.setattr("lab.kernels.layer_study.KernelLab", DrawnLab)          # the missing starts are run alone
    longer = run_race(kernel, 0, 1, tmp_path, 2, starts=5)
    assert longer["starts"] == 5 and longer["race"] == race["race"] and len(longer["entries"]) == len(race["entries"])
    for one, before in zip(longer["entries"], race["entries"]):
        assert one == {**before, "again": before["again"] + [7.0] * (2 if one["strategy"] == "untuned" else 4)}
    monkeypatch.setattr("lab.kernels.layer_study.KernelLab", None)
    assert run_race(kernel, 0, 1, tmp_path, 2) == longer
    built = []

    class CutLab(DrawnLab):
        """The second start is interrupted."""

        def measure_rounds(self, jobs, rounds):
            built.append(self)
            return super().measure_rounds(jobs, rounds) if len(built) < 2 else os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr("lab.kernels.layer_study.KernelLab", CutLab)
    with pytest.raises(KeyboardInterrupt):
        run_race(kernel, 0, 1, tmp_path, 2, starts=8)
    assert starts_left(kernel, 0, 1, tmp_path, starts=8) == 2                    # the first start is kept
    monkeypatch.setattr("lab.kernels.layer_study.KernelLab", None)
    path = search_path(tmp_path, jobs[0])                                 # this search was made again, in another time
    path.write_text(json.dumps(found[0] | {"elapsed": [2 * known for known in found[0]["elapsed"]]}))
    with pytest.raises(TypeError):
        run_race(kernel, 0, 1, tmp_path, 2)


def test_the_winner_of_a_search_that_confirms_was_measured_as_often_as_any():
    jobs, seconds = ["a", "b", "a", "c"], np.array([4.0, 3.0, 6.0, 2.0])
    tried = Trials(seconds, np.arange(4.0), jobs)
    assert [tried.first(n).winner(3)[0] for n in (1, 2, 3, 4)] == ["a", "b", "a", "a"]
    assert [tried.first(n).winner()[0] for n in (1, 2, 3, 4)] == ["a", "b", "b", "c"]
    assert tried.winner(3) == ("a", 5.0) and tried.winner() == ("c", 2.0)
    failed = Trials(np.array([1.0, 3.0, np.inf]), np.arange(3.0), ["a", "b", "a"])
    assert failed.winner(3) == ("b", 3.0) and failed.first(1).winner(3) == ("a", 1.0)
    assert Trials(np.array([np.inf]), np.zeros(1), ["a"]).winner(3) == ("a", np.inf)
    alike = Trials(np.array([4.0, 4.01, 3.0]), np.arange(3.0), ["a", "a", "b"])          # two are enough
    assert alike.winner(3) == ("a", 4.005)


@tvm_test
def test_the_exponential_of_softmax_agrees_with_numpy():
    import tvm
    from tvm import te

    from lab.kernels.definitions import _exponential
    values = np.linspace(-110, 0, 5001, dtype=np.float32)
    x = te.placeholder(values.shape, "float32", "x")
    out = te.compute(values.shape, lambda i: _exponential(x[i]), "out")
    run = tvm.compile(tvm.IRModule({"main": te.create_prim_func([x, out])}), "llvm").jit()
    answer = tvm.runtime.tensor(np.zeros_like(values))
    run["main"](tvm.runtime.tensor(values), answer)
    known = np.exp(np.maximum(values, -87).astype(np.float64))
    np.testing.assert_allclose(answer.numpy(), known, rtol=5e-6)
    assert answer.numpy()[-1] == 1


@tvm_test
@pytest.mark.parametrize("kind", SMALL)
def test_pytorch_is_measured_by_the_lab_and_computes_what_numpy_does(kind, labs):
    (seconds, fault), = labs(kind).measure([PYTORCH])
    assert fault == "" and 0 < seconds < np.inf


def drawn_layers():
    """Layers of which a schedule takes longer the smaller its last tile is, and longer again if it is not unrolled."""
    layers = []
    for sizes in ((64, 64, 64), (32, 128, 64), (96, 64, 128), (64, 256, 32)):
        kernel = Kernel(f"drawn {sizes}", "matmul", sizes)
        codes = np.random.default_rng(0).integers(dims_of(kernel), size=(120, len(dims_of(kernel))))
        chosen = [schedule_choices(kernel, code) for code in codes]
        seconds = np.array([1e-6 * math.prod(sizes) / one["tile 1"] * (1 + (one["unroll"] == 0)) for one in chosen])
        layers.append((kernel, codes, np.where(np.arange(120) % 20 == 7, np.inf, seconds)))
    return layers


def test_trees_order_the_schedules_of_a_layer_that_they_did_not_see():
    *known, (kernel, codes, seconds) = drawn_layers()
    cost, valid = carried_cost(fit_carried(known), kernel)(codes), np.isfinite(seconds)
    assert scipy.stats.spearmanr(cost[valid], seconds[valid])[0] > 0.8
    needed = measurements_needed(seconds[np.argsort(cost, kind="stable")], seconds.min(), 0.0)
    assert needed < measurements_needed(seconds, seconds.min(), 0.0) or needed == 1


def test_on_several_threads_a_schedule_costs_what_the_busiest_thread_has_to_do():
    *known, (kernel, codes, _) = drawn_layers()
    trees = fit_carried(known)
    alone, shared = carried_cost(trees, kernel)(codes), shared_iterations(kernel, codes)
    for threads in (1, 2, 3):
        busiest = [max(len(range(first, n, threads)) for first in range(threads)) / n for n in shared]
        assert carried_cost(trees, kernel, threads)(codes) == pytest.approx(alone + np.log(busiest))
    assert set(shared) > {1, 2}


@tvm_test
@each_kind
def test_threads_share_out_the_iterations_that_the_program_says(kernel):
    from lab.kernels import schedule_kernel
    codes = np.random.default_rng(3).integers(dims_of(kernel), size=(20, len(dims_of(kernel))))
    for code, shared in zip(codes, shared_iterations(kernel, codes)):
        loops = re.findall(r"T\.parallel\((\d+)\)", schedule_kernel(kernel, code).script())
        # of two loops, the first one writes zeros around an image
        assert schedule_choices(kernel, code)["threads"] == "one" or int(loops[-1]) == shared
        assert loops or shared == 1


def test_trees_learn_once_from_the_same_measurements(monkeypatch):
    monkeypatch.setattr(kernel_carried, "_FITTED", {})
    *known, (kernel, codes, seconds) = drawn_layers()
    trees = fit_known(known)
    assert fit_known(drawn_layers()[:-1]) is trees
    assert np.array_equal(carried_cost(trees, kernel)(codes), carried_cost(fit_carried(known), kernel)(codes))
    others = [known[:1], known[1:], [(kernel, codes, seconds)], [(kernel, codes, seconds[::-1])],
              [(known[0][0], codes, seconds)]]
    assert len({id(one) for one in [trees, *map(fit_known, others)]}) == 6
    assert len(kernel_carried._FITTED) == kernel_carried.MOST_FITTED and fit_known(known) is not trees


@each_kind
def test_schedules_of_every_kind_have_the_same_numbers(kernel):
    codes = measured(kernel)[0]
    numbers = schedule_numbers(kernel, codes)
    assert numbers.shape == (12, schedule_numbers(SMALL["softmax"], measured(SMALL["softmax"])[0]).shape[1])
    assert np.isfinite(numbers).all() and len(np.unique(numbers, axis=0)) > 6


@each_kind
def test_columns_of_choices_and_tiles_hold_what_single_schedules_say(kernel):
    codes = np.random.default_rng(0).integers(dims_of(kernel), size=(30, len(dims_of(kernel))))
    columns = choice_columns(kernel, codes)
    each = [schedule_choices(kernel, code) for code in codes]
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: [one[name] for one in each] for name in each[0]}
    assert schedule_numbers(kernel, codes[:0]).shape[0] == 0
    if kernel.kind not in ("softmax", "layer norm"):
        for together, apart in zip(_tile_columns(kernel, columns), zip(*(kernel_tiles(kernel, one) for one in each))):
            assert np.transpose(together).tolist() == list(map(list, apart))


@pytest.mark.parametrize("seconds, needed", [([9.0, 1.05, 1.0], 2), ([9.0, 8.0], 3), ([1.0], 1), ([], 1)])
def test_measurements_needed_are_counted_until_one_is_within_5_percent(seconds, needed):
    assert measurements_needed(seconds, 1.0) == needed


def test_what_the_kit_knows_is_of_other_networks_and_of_the_present_spaces():
    kernel = layer_of("bert", "matmul 128x768x768")
    shared = layer_of("resnet50", "conv2d 3x3 56x56x64 to 64")            # resnet18 has this layer, too
    for one, own in ((kernel, ["bert"]), (shared, ["resnet18", "resnet50"])):
        known = known_measurements(one)
        names = {layer.name for layer, _, _ in known}
        assert len(known) >= 10 and not names & {layer.name for n in own for layer, _ in network_layers(n)}
        for layer, codes, seconds in known:
            assert ((codes >= 0) & (codes < dims_of(layer))).all()
            assert (seconds > 0).all() and len(codes) == len(seconds)
    chosen = {layer.name for layer, _, _ in known_measurements(kernel, ["alexnet", "bert"])}
    assert chosen and chosen <= {layer.name for n in ("alexnet", "bert") for layer, _ in network_layers(n)} - {
        kernel.name}
    softmax = layer_of("bert", "softmax 1536x128")
    assert {layer.name for layer, _, _ in known_measurements(softmax)} == {"softmax 600x50", "layer norm 50x768"}
    assert {layer.kind for layer, _, _ in known_measurements(softmax, ["bert"])} == {"layer norm"}
    assert known_measurements(softmax, ["alexnet"]) == [] and known_cost(softmax, ["alexnet"]) is None


def test_nothing_measured_on_a_layer_is_known_of_it_under_another_name():
    def computes(layer):
        image = layer.kind in ("conv2d", "depthwise")
        padding = layer.sizes[-1] // 2 if layer.padding is None else layer.padding
        return layer.kind, layer.sizes, (layer.stride, padding) if image else ()
    networks = {name: {computes(layer) for layer, _ in network_layers(name)} for name in network_names()}
    renamed = [layer._replace(name="mine") for layer, _ in network_layers("bert")]
    shared = 0
    for kernel in (*KERNELS.values(), *renamed):
        own = set().union(*(layers for layers in networks.values() if computes(kernel) in layers))
        shared += bool(own)
        known = {computes(layer) for layer, _, _ in known_measurements(kernel)}
        assert known and computes(kernel) not in known and not known & own
        assert computes(kernel) not in {computes(layer) for layer, _, _ in known_measurements(kernel, ["resnet18"])}
    assert shared >= 2 + len(renamed)


def drawn_search(name="softmax 1536x128", seconds=(2e-6, np.inf), **other):
    return {"kernel": name, "definition": "now", "strategy": "random", "seed": 0, "seconds": [*seconds],
            "codes": [[i, 1] for i in range(len(seconds))],
            "machine": {"cpu": "a CPU", "threads": 1, "tvm": "0"}, **other}


def test_a_table_of_measurements_keeps_the_longest_search_and_the_last_folder(tmp_path, monkeypatch):
    searches = [drawn_search(), drawn_search(seconds=[1.23456789e-6]), drawn_search(seed=1, seconds=[1e-6] * 3),
                drawn_search("layer norm 128x768", strategy=OURS)]
    monkeypatch.setattr("lab.kernels.layer_study.finished_searches", lambda folder: searches)
    table = measured_table(tmp_path)
    assert table.to_dict("list") == {"kernel": ["softmax 1536x128"] * 2, "definition": ["now"] * 2,
                                     "cpu": ["a CPU"] * 2, "threads": [1, 1], "codes": ["0 1", "1 1"],
                                     "us": [2.0, np.inf]}
    searches[:] = [drawn_search(seconds=[9e-6], definition="later"), drawn_search("layer norm 128x768")]
    again = measured_table(tmp_path, table)
    assert [*again["us"]] == [9.0, 2.0, np.inf] and [*again["definition"]] == ["later", "now", "now"]
    assert measured_table(tmp_path, again).equals(again)
    searches[:] = [drawn_search("layer norm 128x768", seconds=[5e-6])]                   # shorter than the stored one
    assert measured_table(tmp_path, again).equals(again)
    searches[:] = [drawn_search("layer norm 128x768", seconds=[5e-6, 6e-6])]             # as long
    assert [*measured_table(tmp_path, again)["us"]] == [9.0, 5.0, 6.0]
    old, new = (drawn_search("new", seconds=[seconds] * count, machine={"cpu": "a CPU", "threads": 1, "tvm": tvm})
                for seconds, count, tvm in ((1e-6, 2, "0"), (2e-6, 1, "now")))
    monkeypatch.setattr("lab.kernels.layer_study.tvm_version", lambda: "now")
    for searches[:] in ([old, new], [new, old]):
        assert [*measured_table(tmp_path)["us"]] == [2.0]                                # though the other is longer


def test_measurements_of_another_definition_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.kernels.carried.MEASURED", tmp_path / "measured.csv.gz")
    kernel, layer = layer_of("alexnet", "matmul 1x4096x4096"), layer_of("bert", "matmul 128x768x768")
    now = [drawn_search(layer.name, definition=definition(layer)), drawn_search("matmul 128x768x3072")]
    monkeypatch.setattr("lab.kernels.layer_study.finished_searches", lambda folder: now)
    measured_table(tmp_path).to_csv(tmp_path / "measured.csv.gz", index=False)
    (found, codes, seconds), = known_measurements(kernel)
    assert found == layer and codes.tolist() == [[0, 1], [1, 1]] and seconds.tolist() == [2e-6, np.inf]


def test_the_stored_measurements_are_of_layers_as_they_are_defined_now():
    stored = pd.read_csv(kernel_carried.MEASURED, keep_default_na=False)
    now = {kernel.name: definition(kernel) for name in network_names() for kernel, _ in network_layers(name)}
    assert len(stored) and (stored["definition"] == stored["kernel"].map(now)).all()


def test_trees_need_a_layer_to_learn_from():
    with pytest.raises(ValueError, match="^measured is ..; expected the measurements of at least one layer$"):
        fit_carried([])


def drawn_race(kernel="a", seed=0, **ms):
    entries = [{"strategy": name, "measurements": 0 if name == PYTORCH else 50, "seconds": 1.23,
                "schedule": [1, 0] if name == OURS else None,
                "again": [1e-3 * value, 3e-3 * value, 2e-3 * value]} for name, value in ms.items()]
    return {"kernel": kernel, "seed": seed, "starts": 3, "entries": entries,
            "machine": {"cpu": "a CPU", "threads": 1, "tvm": "0", "torch": "0", "date": "1970-01-01"}}


def test_a_table_holds_the_medians_of_the_longest_race_of_a_kernel_and_seed(tmp_path):
    short, long = drawn_race(random=9.0), drawn_race(**{OURS: 1.0, "random": 2.0})
    for name, race in (("z", short), ("a", long), ("b", drawn_race(seed=1, random=3.0))):
        (tmp_path / f"race_{name}.json").write_text(json.dumps(race))
    table = race_table(tmp_path)
    assert table[["strategy", "seed", "ms", "low", "high"]].values.tolist() == [
        ["random", 1, 6.0, 4.5, 7.5], [OURS, 0, 2.0, 1.5, 2.5], ["random", 0, 4.0, 3.0, 5.0]]
    assert table["schedule"].tolist() == ["", "1 0", ""]


def test_a_race_of_an_older_definition_of_a_layer_does_not_count(tmp_path):
    layer = dict((kernel.name, kernel) for kernel, _ in network_layers("bert"))["softmax 1536x128"]
    old, new = ({**drawn_race(layer.name, **ms), "definition": name} for name, ms in (
        ("other", {OURS: 1.0, "random": 2.0}), (definition(layer), {OURS: 4.0})))
    for name, race in (("a", old), ("b", new)):
        (tmp_path / f"race_{name}.json").write_text(json.dumps(race))
    assert race_table(tmp_path)["ms"].tolist() == [8.0]
    (tmp_path / "race_b.json").unlink()
    assert race_table(tmp_path).empty


def test_a_longer_race_with_fewer_starts_replaces_no_other(tmp_path):
    for name, race in (("a", drawn_race(random=9.0)), ("b", {**drawn_race(**{OURS: 1.0, "random": 2.0}), "starts": 1})):
        (tmp_path / f"race_{name}.json").write_text(json.dumps({**race, "race": name}))
    assert race_table(tmp_path)[["race", "ms"]].values.tolist() == [["b", 2.0], ["b", 4.0], ["a", 18.0]]


def test_a_kernel_that_exceeds_the_limit_takes_infinity_and_spoils_no_other_number(tmp_path):
    race = drawn_race(untuned=1.0, random=9.0)
    for again in ([np.inf], [np.inf, np.inf, np.inf, 1.0], [np.inf, np.inf]):
        race["entries"][0]["again"] = again
        (tmp_path / "race_1.json").write_text(json.dumps(race))
        race_table(tmp_path).to_csv(tmp_path / "races.csv", index=False)
        slow, fast = read_races(tmp_path / "races.csv")[["low", "ms", "high"]].values.tolist()
        assert slow[1:] == [np.inf] * 2 and fast == [13.5, 18.0, 22.5]


def test_several_threads_make_another_machine(tmp_path):
    one, four = drawn_race(random=9.0), drawn_race(random=1.0)
    four["machine"]["threads"] = 4
    searches = [{"kernel": "a", "seed": 0, "machine": race["machine"], "strategy": "random", "seconds": [1.0, seconds],
                 "winners": {"50": "a module"}} for race, seconds in ((one, 0.9), (four, 0.1))]
    for name, found in zip(("race_1", "race_2", "x", "y"), (one, four, *searches)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    assert race_table(tmp_path).set_index("cpu")[["ms", "needed", "seen"]].to_dict("index") == {
        "a CPU": {"ms": 18.0, "needed": 2, "seen": 900}, "a CPU, 4 threads": {"ms": 2.0, "needed": 2, "seen": 100}}


def test_needed_counts_until_within_5_percent_of_the_lowest_that_any_search_saw(tmp_path):
    race = drawn_race(**{OURS: 1.0, "random": 2.0, PYTORCH: 3.0})
    searches = [{"kernel": "a", "seed": 0, "machine": race["machine"], "strategy": strategy, "seconds": seconds}
                for strategy, seconds in ((OURS, [5.0, 1.04, 1.0]), ("random", [5.0, 4.0]), ("random", [5.0]))]
    searches = [one | {"winners": {}} for one in searches]
    for name, found in zip(("race_1", "x", "y", "z"), (race, *searches)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    needed = dict(race_table(tmp_path)[["strategy", "needed"]].values)
    assert needed == {OURS: 2, "random": 3, PYTORCH: 0}


def test_a_table_says_what_the_search_saw_of_its_winner(tmp_path):
    """The mean of the winner's own trials where codes tell which these are; else the shortest trial."""
    race = drawn_race(**{OURS: 1.0, RIVAL: 2.0, PYTORCH: 3.0})
    about = {"kernel": "a", "seed": 0, "machine": race["machine"], "seconds": [5.0, 1.0, 2.0, 9.0]}
    searches = [about | {"strategy": OURS, "winners": {"50": [1, 0]}, "codes": [[0, 0], [1, 0], [1, 0], [1, 1]]},
                about | {"strategy": RIVAL, "winners": {"50": "a module"}},
                about | {"strategy": RIVAL, "seconds": [0.1], "winners": {"1": "a module"}}]
    for name, found in zip(("race_1", "x", "y", "z"), (race, *searches)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    seen = dict(race_table(tmp_path)[["strategy", "seen"]].values)
    assert seen[OURS] == 1500 and seen[RIVAL] == 1000 and np.isnan(seen[PYTORCH])
    (tmp_path / "x.json").unlink()                                        # what is not known is not 0
    lost = race_table(tmp_path).set_index("strategy")
    assert pd.isna(lost.loc[OURS, ["needed", "seen"]]).all() and lost.loc[PYTORCH, "needed"] == 0


def test_luck_is_the_time_in_races_over_that_in_searches_layer_by_layer():
    table = pd.DataFrame([("c", kernel, "x", 50, ms, seen) for kernel, ms, seen in (
        ("a", 2.0, 1.0), ("a", 2.0, 4.0), ("b", 4.0, 1.0), ("b", 9.0, np.nan))],
        columns=["cpu", "kernel", "strategy", "measurements", "ms", "seen"])
    row, = winners_luck(pd.concat([table, table.assign(strategy="y")]), ["x"]).to_dict("records")
    assert row["layers"] == 2 and row["ratio"] == pytest.approx(2.0) and row["low"] <= 2 <= row["high"]
    assert winners_luck(table, ["y"]).empty


def test_measurements_saved_are_a_geometric_mean_over_layers():
    table = pd.DataFrame([("c", kernel, seed, "1", strategy, need, 8) for seed in (0, 1) for kernel, strategy, need in (
        ("a", "x", 2), ("a", "y", 8), ("b", "x", 9), ("b", "y", 9), ("d", "x", 1))],
        columns=["cpu", "kernel", "seed", "race", "strategy", "needed", "measurements"])
    table["needed"] = table["needed"].astype("Int64")
    saved = measurements_saved(table, "x", "y")
    assert saved["layers"] == 2 and saved["ratio"] == pytest.approx(0.5) and saved["low"] <= 0.5 <= saved["high"]
    assert [saved[name] for name in ("runs", "one", "other", "one never", "other never")] == [4, 5.5, 8.5, 2, 2]
    table.loc[0, "needed"] = pd.NA                                        # seed 0 of layer a is not known
    assert measurements_saved(table, "x", "y")["runs"] == 3
    with pytest.raises(ValueError, match="^races is 0; expected at least one race with x and z$"):
        measurements_saved(table, "x", "z")


def test_a_later_race_replaces_the_earlier_ones_that_it_covers_and_leaves_the_others():
    rows = {"kernel": ["a", "a", "b"], "strategy": ["x", "y", "x"], "measurements": 50, "seed": 0, "race": "1",
            "cpu": "c", "threads": 1, "tvm": "0"}
    old, again = pd.DataFrame(rows | {"ms": [1, 2, 3]}), pd.DataFrame(rows | {"ms": [4, 5, 6]}).iloc[:2]
    wider = pd.concat([again, again.iloc[:1].assign(strategy="z", ms=7)]).assign(race="2")
    same = ["kernel", "race", "ms"]
    assert merged_races(old, again)[same].values.tolist() == [["b", "1", 3], ["a", "1", 4], ["a", "1", 5]]
    assert merged_races(old, wider)[same].values.tolist() == [["b", "1", 3], *(["a", "2", ms] for ms in (4, 5, 7))]
    fewer = wider.iloc[1:].assign(race="3")                               # without x, so x and y of the old race stay
    assert merged_races(old, fewer)[same].values.tolist() == [*old[same].values.tolist(), ["a", "3", 5], ["a", "3", 7]]
    assert merged_races(wider, fewer)["race"].tolist() == ["2"] * 3 + ["3"] * 2
    assert merged_races(fewer, wider)["race"].tolist() == ["2"] * 3       # in this order it is covered
    assert len(merged_races(old, again.assign(cpu="another"))) == 5
    assert merged_races().empty and merged_races(old).equals(old)
    whole = old.astype({"measurements": int})
    pd.testing.assert_frame_equal(merged_races(whole, pd.DataFrame()), whole)          # whole numbers stay whole


RACES = pd.DataFrame([(kernel, strategy, count, seed, "1", "a CPU", ms, seconds) for seed in (0, 1)
    for kernel, strategy, count, ms, seconds in (
        ("matmul 128x768x768", "x", 50, 1.0 + seed, 10.0), ("matmul 128x768x768", "y", 50, 2.0 + 2 * seed, 20.0),
        ("layer norm 128x768", "x", 50, 3.0, 10.0), ("layer norm 128x768", "y", 50, 3.1, 40.0),
        ("softmax 1536x128", "x", 50, 1.0, 5.0))],
    columns=["kernel", "strategy", "measurements", "seed", "race", "cpu", "ms", "seconds"])


def test_searches_are_compared_by_the_geometric_mean_over_layers_that_have_both():
    row, = compare_searches(RACES, [(("x", 50), ("y", 50)), (("x", 50), ("z", 50))]).to_dict("records")
    assert row["ratio"] == pytest.approx(math.sqrt(0.5 * 3.0 / 3.1)) and row["low"] <= row["ratio"] <= row["high"]
    assert (row["one"], row["other"], row["layers"], row["runs"]) == ("x, 50", "y, 50", 2, 4)
    assert (row["faster"], row["ties"], row["slower"]) == (1, 1, 0)
    assert row["time"] == pytest.approx(40 / 120)


def test_ratios_are_shown_with_their_intervals_and_search_times_where_they_are_known():
    table = pd.DataFrame({"one": ["x", "y"], "ratio": [0.9, 1.23456], "low": [0.8, 1.0], "high": [1.0, 1.5],
                          "layers": [4, 5], "time": [0.21, np.nan]})
    text = re.sub(r"<style.*</style>", "", readable_ratios(table, "size").to_html(), flags=re.DOTALL)
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", text)
    assert cells == ["one", "size", "layers", "search time", "x", "0.900 (0.800 to 1.000)", "4", "0.210",
                     "y", "1.235 (1.000 to 1.500)", "5", ""]


def test_layers_are_compared_one_by_one_and_the_slowest_is_first():
    other = RACES.assign(cpu="another CPU", ms=RACES["ms"] ** 2)
    found = layer_ratios(pd.concat([RACES, other]), ("x", 50), ("y", 50))
    assert found.values.tolist() == [
        ["a CPU", "x, 50", "y, 50", "layer norm 128x768", pytest.approx(3.0 / 3.1), 2],
        ["another CPU", "x, 50", "y, 50", "layer norm 128x768", pytest.approx((3.0 / 3.1) ** 2), 2],
        ["a CPU", "x, 50", "y, 50", "matmul 128x768x768", pytest.approx(0.5), 2],
        ["another CPU", "x, 50", "y, 50", "matmul 128x768x768", pytest.approx(0.25), 2]]
    none = layer_ratios(RACES, ("x", 50), ("z", 50))
    assert none.empty and [*none] == [*found]


def test_the_sum_over_a_network_counts_each_layer_as_often_as_the_network_has_it():
    row, = network_sums(RACES, ["bert", "vgg16"], [("x", 50), ("y", 50)]).to_dict("records")
    assert (row["network"], row["layers"], row["of"]) == ("bert", 2, 7)
    counts = {kernel.name: count for kernel, count in network_layers("bert")}
    assert row["x, 50"] == pytest.approx(1.5 * counts["matmul 128x768x768"] + 3 * counts["layer norm 128x768"])
    assert row["y, 50"] == pytest.approx(3.0 * counts["matmul 128x768x768"] + 3.1 * counts["layer norm 128x768"])
    none = network_sums(RACES, ["bert"], [("z", 50)])
    assert none.empty and [*none] == ["cpu", "network", "layers", "of", "z, 50"]


def test_times_of_different_races_are_not_compared():
    slow = RACES[RACES["strategy"] == "x"].assign(race="2", ms=RACES["ms"] * 10, seconds=7.0)      # a slower day
    other = slow.assign(strategy="z", ms=slow["ms"] * 2, seconds=14.0)
    races = pd.concat([RACES, slow, other])
    pairs = [(("x", 50), ("y", 50)), (("z", 50), ("y", 50)), (("z", 50), ("x", 50))]
    before, (same, third) = compare_searches(RACES, pairs), compare_searches(races, pairs).to_dict("records")
    assert before.to_dict("records") == [same]               # no race has y and z
    assert third["ratio"] == pytest.approx(2) and (third["layers"], third["runs"], third["time"]) == (3, 6, 2)
    sums, = network_sums(races, ["bert"], [("x", 50), ("y", 50), ("z", 50)]).to_dict("records")
    old, = network_sums(RACES, ["bert"], [("x", 50), ("y", 50)]).to_dict("records")
    assert sums["layers"] == 2 and sums["z, 50"] == pytest.approx(2 * sums["x, 50"])
    assert sums["x, 50"] == pytest.approx(5.5 * old["x, 50"])             # the mean over both days
    row, = compare_networks(races, ["bert"], ("y", 50), ("x", 50)).to_dict("records")
    assert row == compare_networks(RACES, ["bert"], ("y", 50), ("x", 50)).to_dict("records")[0]


def test_complete_races_have_every_entry():
    other = RACES[RACES["strategy"] == "x"].assign(race="2")
    races = pd.concat([RACES, other])
    both = complete_races(races, [("x", 50), ("y", 50)])
    slow = [race for _, race in races.groupby(["kernel", "seed", "race"])
            if {("x", 50), ("y", 50)} <= {*zip(race["strategy"], race["measurements"])}]
    assert len(both) and sorted(both["ms"]) == sorted(pd.concat(slow)["ms"]) and set(both["race"]) == set(RACES["race"])
    assert complete_races(races, [("x", 50), ("no", 50)]).empty


def test_names_of_races_are_texts_and_tables_without_rows_leave_the_types_as_they_are(tmp_path):
    races = RACES.assign(race="00000012", seen=np.nan, needed=7)
    races.to_csv(tmp_path / "races.csv", index=False)
    found = read_races(tmp_path / "races.csv")
    assert set(found["race"]) == {"00000012"} and set(every_form(found, ["x"], "any")["race"]) == {"00000012, x"}
    pd.testing.assert_frame_equal(stacked([found[:0], found, found[:0]]), found)
    assert stacked([found[:0]] * 2).columns.equals(found.columns) and stacked([found[:0]] * 2).empty


def test_each_layer_has_the_newest_form_that_its_machine_has_measured():
    rows = [(cpu, kernel, form) for cpu, kernel, forms in (
        ("a CPU", "one", "new old random"), ("a CPU", "two", "old oldest random"), ("b CPU", "one", "oldest random"),
        ("b CPU", "two", "random")) for form in forms.split()]
    races = pd.DataFrame(rows, columns=["cpu", "kernel", "strategy"]).assign(ms=np.arange(len(rows)))
    slow = []
    for row in races.to_dict("records"):
        rivals = {form for cpu, kernel, form in rows if (cpu, kernel) == (row["cpu"], row["kernel"])}
        newest = next((form for form in ("new", "old", "oldest") if form in rivals), None)
        if row["strategy"] in ("random", newest):
            slow.append({**row, "strategy": "random" if row["strategy"] == "random" else "x"})
    shuffled = races.sample(frac=1, random_state=0).set_index(np.full(len(races), 7))     # no use of order or index
    found = newest_forms(shuffled, ["new", "old", "oldest"], "x").sort_values("ms", ignore_index=True)
    pd.testing.assert_frame_equal(found, pd.DataFrame(slow))


def test_a_race_counts_once_for_each_form_of_a_search_that_it_has():
    rows = [(cpu, kernel, race, entry) for cpu, kernel, race, entries in (
        ("a CPU", "one", "r", "new old random PyTorch"), ("a CPU", "one", "s", "old random"),
        ("b CPU", "one", "r", "random"), ("b CPU", "two", "r", "new random")) for entry in entries.split()]
    races = pd.DataFrame(rows, columns=["cpu", "kernel", "race", "strategy"]).assign(seed=0, ms=np.arange(len(rows)))
    slow = []
    for form in ("new", "old"):
        for row in races.to_dict("records"):
            if row["strategy"] in (form, "random", "PyTorch") and (
                    row["cpu"], row["kernel"], row["race"], form) in rows:
                slow.append({**row, "race": f"{row['race']}, {form}",
                             "strategy": "x" if row["strategy"] == form else row["strategy"]})
    shuffled = races.sample(frac=1, random_state=0).set_index(np.full(len(races), 7))     # no use of order or index
    found = every_form(shuffled, ["new", "old"], "x").sort_values(["ms", "race"], ignore_index=True)
    pd.testing.assert_frame_equal(found, pd.DataFrame(slow).sort_values(["ms", "race"], ignore_index=True))


def test_progress_is_over_the_layers_whose_race_has_the_base_and_leaves_incomplete_entries_out():
    more = RACES[RACES["strategy"] == "x"].assign(measurements=100, ms=RACES["ms"] / 2, seconds=30.0)
    progress = search_progress(pd.concat([RACES, more]), ["x", "y", "z"], ("y", 50))
    found = progress[["strategy", "measurements", "layers"]].values.tolist()
    assert found == [["x", 50, 2], ["x", 100, 2], ["y", 50, 2]]
    half = (1 / 2 * 3.0 / 3.1) ** 0.5
    assert progress["ratio"].tolist() == pytest.approx([half, half / 2, 1])
    assert progress["seconds"].tolist() == [10, 30, 30]
    assert search_progress(RACES, ["x"], ("softmax", 1)).empty
    for by in ("measurements", "seconds"):
        ax = draw_progress(progress, by, title="t")
        assert ax.get_legend_handles_labels()[1] == ["x", "y"] and ax.get_ylabel() == "time over that of y, 50"


def test_a_picture_of_layers_has_a_row_per_layer():
    ax = draw_layers(RACES, [("x", 50)], base=("y", 50), title="t")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["layer norm 128x768", "matmul 128x768x768"]
    assert "x, 50" in ax.get_legend_handles_labels()[1]


def test_a_picture_of_many_layers_can_be_of_the_ends_alone():
    races = pd.concat([RACES.assign(kernel=f"layer {n}", ms=RACES["ms"].where(RACES["strategy"] != "x", 1.0 + n))
                       for n in range(6)])
    ax = draw_layers(races, [("x", 50)], base=("y", 50), ends=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["layer 5", "layer 4", "layer 1", "layer 0"]


def test_networks_are_compared_by_their_sums_and_their_search_times():
    row, = compare_networks(RACES, ["bert", "vgg16"], ("y", 50), ("x", 50)).to_dict("records")
    sums, = network_sums(RACES, ["bert"], [("x", 50), ("y", 50)]).to_dict("records")
    assert row["ratio"] == pytest.approx(sums["y, 50"] / sums["x, 50"]) and row["time"] == pytest.approx(60 / 20)
    assert [row[name] for name in ("cpu", "layers", "of", "faster", "ties", "slower", "loses on")] == [
        "a CPU", 2, 7, 0, 1, 1, "matmul 128x768x768"]
    none = compare_networks(RACES, ["bert"], ("x", 50), ("z", 50))
    assert none.empty and [*none] == [*row]


def test_the_seconds_of_a_search_are_a_start_and_so_many_a_measurement():
    spent = {("x", 50): 7.0, ("x", 100): 12.0, ("y", 100): 30.0, ("y", 300): 70.0}      # 2 + n / 10 and 10 + n / 5
    races = pd.DataFrame([
        {"cpu": "a CPU", "kernel": name, "seed": seed, "race": "1", "strategy": strategy, "measurements": count,
         "ms": 1.0, "seconds": layer * day * seconds} for layer, name in enumerate(
             ("matmul 128x768x768", "layer norm 128x768", "conv2d 3x3 7x7x512 to 512"), 1)
        for seed, day in enumerate((1, 3)) for (strategy, count), seconds in spent.items()
        if (layer, seed, strategy) != (2, 1, "y")])          # a race without the other search tells nothing
    table = search_seconds(races, ["bert", "alexnet"], [("x", 50, 100), ("y", 100, 300)]).set_index("search")
    mean = (2 + 2) / 2                                       # layer 1 on both days, layer 2 on the first
    assert {*table["network"]} == {"bert"} and {*table["layers"]} == {2}
    assert table["seconds"].tolist() == pytest.approx([12 * mean, 70 * mean])
    assert table["start"].tolist() == pytest.approx([2 * mean, 10 * mean])
    assert table["each"].tolist() == pytest.approx([mean / 10, mean / 5]) and [*table.index] == ["x, 100", "y, 300"]
    none = search_seconds(races, ["bert"], [("z", 50, 100)])
    assert none.empty and {*none} == {*table.reset_index()}


def test_a_search_time_that_is_not_known_leaves_the_kernel_times_alone(tmp_path):
    lost = RACES.assign(race="a", seen=1.0, needed=pd.array([3] * len(RACES), "Int64"))
    mine = (lost["kernel"] == "layer norm 128x768") & (lost["strategy"] == "x")
    lost.loc[mine, ["seconds", "seen"]], lost.loc[mine, "needed"] = np.nan, pd.NA
    lost.assign(schedule="").to_csv(tmp_path / "races.csv", index=False)
    read = read_races(tmp_path / "races.csv")
    assert (read.pop("schedule") == "").all()
    pd.testing.assert_frame_equal(read, lost, check_dtype=False)
    for compare in (compare_searches, lambda races, pairs: compare_networks(races, ["bert"], *pairs[0])):
        (before,), (after,) = (compare(races, [(("y", 50), ("x", 50))]).to_dict("records") for races in (RACES, lost))
        assert before.pop("time") == 3 and np.isnan(after.pop("time")) and before == after
    none = RACES.assign(seconds=RACES["seconds"].where(RACES["strategy"] == "y"))         # of x, no time is known
    (row,), two = compare_searches(none, [(("y", 50), ("x", 50))]).to_dict("records"), ["x", "y"]
    assert row["ratio"] == compare_searches(RACES, [(("y", 50), ("x", 50))])["ratio"][0] and np.isnan(row["time"])
    told = search_progress(none, two, ("y", 50)).set_index("strategy")["seconds"]
    assert np.isnan(told["x"]) and told["y"] == search_progress(RACES, two, ("y", 50)).set_index("strategy")[
        "seconds"]["y"]


def test_seeds_are_compared_over_whole_networks_alone():
    layers, rng = network_layers("bert"), np.random.default_rng(0)
    rows = [(kernel.name, strategy, 50, seed, "1", "a CPU", rng.uniform(1, 2), 1.0) for kernel, _ in layers
            for strategy in "xy" for seed in (0, 1, 2) if (strategy, kernel, seed) != ("x", layers[3][0], 2)]
    rows.append((layers[0][0].name, "y", 50, 3, "1", "a CPU", 1.0, 1.0))       # a seed without any "x"
    races = pd.DataFrame(rows, columns=RACES.columns)
    ms = {(name, strategy, seed): value for name, strategy, _, seed, _, _, value, _ in rows}
    sums = {(strategy, seed): sum(count * ms[kernel.name, strategy, seed] for kernel, count in layers)
            for strategy in "xy" for seed in (0, 1)}
    ratios = [sums["x", seed] / sums["y", seed] for seed in (0, 1)]
    row, = compare_seeds(races, ["bert", "vgg16"], [(("x", 50), ("y", 50)), (("x", 50), ("z", 50))]).to_dict("records")
    assert row == {"cpu": "a CPU", "one": "x, 50", "other": "y, 50", "network": "bert", "seeds": 2,
                   "ratio": pytest.approx(math.sqrt(math.prod(ratios))), "lowest": pytest.approx(min(ratios)),
                   "highest": pytest.approx(max(ratios))}
    assert compare_seeds(races[races["seed"] == 0], ["bert"], [(("x", 50), ("y", 50))]).empty
    none = compare_seeds(RACES, ["bert"], [(("x", 50), ("y", 50))])
    assert none.empty and [*none] == [*row]


def test_a_picture_of_networks_has_a_bar_per_network_and_search():
    ax = draw_networks(RACES, ["bert", "vgg16"], [("x", 50)], base=("y", 50), title="t")
    row, = network_sums(RACES, ["bert"], [("x", 50), ("y", 50)]).to_dict("records")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["bert: 2 of 7 layers"]
    assert [bar.get_width() for bar in ax.patches] == [pytest.approx(row["x, 50"] / row["y, 50"])]


def test_shares_of_time_are_those_of_the_layers_times_their_counts():
    row, = time_shares(RACES, ["bert", "vgg16"], ("x", 50)).to_dict("records")
    counts = {kernel.name: count for kernel, count in network_layers("bert")}
    dense, others = 1.5 * counts["matmul 128x768x768"], 3 * counts["layer norm 128x768"] + counts["softmax 1536x128"]
    assert row["dense layer"] == pytest.approx(dense / (dense + others))
    assert row["softmax and layer norm"] == pytest.approx(others / (dense + others))
    assert row["ms"] == pytest.approx(dense + others) and (row["layers"], row["of"]) == (3, 7)
    assert sum(row[sort] for sort in SORTS) == pytest.approx(1)
    ax = draw_time_shares(pd.DataFrame([row]), title="t")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["bert: 3 of 7 layers"]
    assert len(ax.patches) == len(SORTS)
    assert [*time_shares(RACES, ["vgg16"], ("x", 50))] == [*row] and len(time_shares(RACES, ["vgg16"], ("x", 50))) == 0


def test_winning_choices_are_counted_per_layer_and_beside_their_share_in_the_space():
    rng, rows, slow = np.random.default_rng(0), [], {}
    layers = {kernel.name: kernel for kernel, _ in network_layers("squeezenet1_1") + network_layers("bert")}
    for name, kernel in layers.items():
        space = schedule_space(kernel)
        for seed in range(rng.integers(1, 3)):
            codes = rng.integers([len(choice.values) for choice in space])
            rows.append(("x", 50, seed, name, " ".join(map(str, codes))))
    table = pd.DataFrame(rows, columns=["strategy", "measurements", "seed", "kernel", "schedule"])
    found = winning_choices(table, ("x", 50))
    for name, part in table.groupby("kernel"):
        if not name.startswith(("softmax", "layer norm")):
            for schedule in part["schedule"]:
                value = schedule_choices(layers[name], [*map(int, schedule.split())])["unroll"]
                slow[str(value)] = slow.get(str(value), 0) + 1 / len(part)
    unroll = found[found["choice"] == "unroll"].set_index("value")
    number = sum(not name.startswith(("softmax", "layer norm")) for name in layers)
    widths = found[found["choice"] == "vector width"]
    assert [*widths["value"]] == ["1", "8 to 15", "16 to 31", "32 to 63", "64"]
    assert unroll["winners"].to_dict() == pytest.approx({value: slow.get(value, 0) / number for value in unroll.index})
    assert [*unroll.index] == ["0", "16", "64", "512"] and np.allclose(unroll["space"], 0.25)
    assert (unroll["layers"] == number).all()
    sums = found.groupby("choice")[["winners", "space"]].sum()
    assert np.allclose(sums, 1) and set(sums.index) == {"sketch", "unroll", "padding", "vector width"}
    ax = draw_winning_choices(found, title="t")
    assert len(ax.patches) == len(found) == len(ax.get_yticklabels())
    assert winning_choices(table, ("y", 50)).empty


def test_jobs_that_differ_in_anything_have_files_of_their_own(tmp_path):
    job = SearchJob(SMALL["matmul"], OURS, 50)
    others = [job._replace(kernel=SMALL["matmul"]._replace(stride=2)), job._replace(strategy="random"),
              job._replace(measurements=51), job._replace(seed=1), job._replace(threads=2),
              job._replace(target="x86-64-v3")]
    assert len({search_path(tmp_path, one) for one in (job, *others)}) == 7


def test_a_kernel_with_another_space_of_schedules_has_another_definition(monkeypatch):
    known = [definition(kernel) for kernel in SMALL.values()]
    assert known == [definition(kernel) for kernel in SMALL.values()]
    monkeypatch.setattr("lab.kernels.schedules.TILES", (1, 2, 4))
    changed = [definition(kernel) != name for kernel, name in zip(SMALL.values(), known)]
    assert changed == [kernel.kind not in ("softmax", "layer norm") and name != "100 columns" and any(
        n >= 16 for n in kernel_axes(kernel)[0]) for name, kernel in SMALL.items()]


def test_the_stored_tables_are_of_all_kernels_and_within_their_budgets():
    folder = Path(__file__).resolve().parents[1] / "notebooks"
    stored, learned = (pd.read_csv(folder / name) for name in ("kernels.csv", "kernels_learned.csv"))
    assert set(stored["kernel"]) == set(learned["kernel"]) == set(KERNELS)
    assert (stored.groupby("kernel").size() == stored["strategy"].nunique()).all()
    for name, most in ((OURS, 100), ("random", 100), (RIVAL, 300)):
        assert (stored.loc[stored["strategy"] == name, "measurements"] <= most).all()
    rivals = stored["kernel"].map(stored[stored["strategy"] == RIVAL].set_index("kernel")["ms"])
    assert np.allclose(stored["ratio"], stored["ms"] / rivals, rtol=0.1)     # a median of quotients, and of medians
    gap = stored[stored["strategy"] != RIVAL]
    assert (gap["verdict"] == np.where((gap["ratio"] - 1).abs() <= 0.05, "tie",
                                       np.where(gap["ratio"] < 1, "faster", "slower"))).all()


def test_the_readme_tells_what_the_stored_races_say(project):
    races = read_races(project / "notebooks" / "kernels_networks.csv")
    groups = library_groups(pd.read_csv(project / "notebooks" / "kernels_libraries.csv"))
    dense, others, every = groups["dense layers and matmuls (MKL)"], groups["all others"], {*races["kernel"]}
    lines = (project / "README.md").read_text().splitlines()
    forms = [CARRIED, *(f"{CARRIED}, {form}" for form in ("confirmed, restarted", "confirmed", "doubting", "trusted"))]
    machines = {"slower": "(family 25, model 17)", "faster": "(family 26, model 2)"}
    place, = (place for place, line in enumerate(lines) if line.startswith("| kernel time, 95% interval over layers |"))
    head, rows = lines[place], list(takewhile(lambda line: line.startswith("|"), lines[place + 2:]))
    ours, random, pytorch = ("newest", 100), ("random", 100), (PYTORCH, 0)
    known = {"our search over random search in the same space, 100 ": (ours, random, every),
             "our search with 100 over TVM's tuner MetaSchedule with 300 ": (ours, (RIVAL, 300), every),
             r"our search with 100 over PyTorch \|": (ours, pytorch, every),
             "random search with 100 over PyTorch ": (random, pytorch, every),
             r"our search with 100 over PyTorch: the (\d+) and (\d+) dense layers and matmuls": (ours, pytorch, dense),
             r"our search with 100 over PyTorch: the (\d+) and (\d+) other layers": (ours, pytorch, others)}
    assert len(rows) >= 3
    for line in rows:
        (found, one, other, layers), = ((found, *pair) for start, pair in known.items()
                                        if (found := re.match(rf"\| {start}", line)))
        told = re.findall(r"(\d\.\d{3}) \((\d\.\d{3}) to (\d\.\d{3})\)", line)
        assert len(told) == len(machines)
        for at, ((name, cpu), (ratio, low, high)) in enumerate(zip(machines.items(), told)):
            part = complete_races(races[races["cpu"].str.endswith(cpu) & races["kernel"].isin(layers)], [other])
            row, = compare_searches(newest_forms(part, forms, "newest"), [(one, other)]).to_dict("records")
            assert (ratio, low, high) == tuple(f"{row[key]:.3f}" for key in ("ratio", "low", "high"))
            of_all = re.search(rf"{name} machine {re.escape(cpu[:-1])}\), (\d+) layers", head)[1]
            assert (found.groups()[at] if found.groups() else of_all) == str(row["layers"])


def test_what_pytorch_calls_was_read_for_each_stored_layer_and_no_library_is_above_the_peak(project):
    libraries = pd.read_csv(project / "notebooks" / "kernels_libraries.csv")
    races = read_races(project / "notebooks" / "kernels_networks.csv")
    kernels = {kernel.name: kernel for name in network_names() for kernel, _ in network_layers(name)}
    for cpu, part in libraries.groupby("cpu"):
        assert set(part.loc[part["library"] == PYTORCH, "kernel"]) == set(races.loc[races["cpu"] == cpu, "kernel"])
    assert not libraries.duplicated(["cpu", "kernel", "library"]).any()
    assert (libraries["low"] <= libraries["ms"]).all() and (libraries["ms"] <= libraries["high"]).all()
    assert (libraries["peak"] / libraries["clock"]).between(31, 33).all()             # operations per cycle of Zen 4
    flops = libraries[libraries["gflops"].notna()]
    assert np.allclose(flops["gflops"], [2e-6 * multiplications(kernels[name]) / ms for name, ms in zip(
        flops["kernel"], flops["ms"])], rtol=1e-3)
    assert np.allclose(flops["percent"], 100 * flops["gflops"] / flops["peak"], rtol=1e-3)
    assert flops["percent"].max() < 100
    assert {kernels[name].kind for name in libraries.loc[libraries["gflops"].isna(), "kernel"]} == {
        "softmax", "layer norm"}
    mine = races[races["cpu"] == libraries["cpu"].iloc[0]]
    mine = mine[(mine["measurements"] > 0) & mine["kernel"].map(lambda name: kernels[name].kind == "matmul")]
    fast = mine["kernel"].map({name: 2e-6 * multiplications(kernel) for name, kernel in kernels.items()}) / mine["ms"]
    assert 0.99 < fast.max() / libraries["peak"].median() < 1.005                     # and the best schedules reach it


def test_libraries_are_counted_by_sort_and_by_what_pytorch_calls():
    calls = [("matmul 1x1000x512", "MKL SGEMM"), ("batch matmul 12x50x50x64", "MKL SGEMM_BATCH"),
             ("conv2d 1x1 55x55x64 to 16", "MKL SGEMM"), ("conv2d 3x3 56x56x64 to 64", "oneDNN jit"),
             ("conv2d 3x3 28x28x128 to 128", "oneDNN brg"), ("depthwise 3x3 14x14x384", "oneDNN dw"),
             ("softmax 600x50", "PyTorch")]
    libraries = pd.DataFrame(calls, columns=["kernel", "backend"]).assign(library=PYTORCH)
    table = called_libraries(libraries)
    assert table.astype(str).apply(tuple, axis=1).tolist() == [
        ("convolution 1x1", "MKL", "1", "SGEMM"), ("larger convolution", "oneDNN", "2", "brg, jit"),
        ("depthwise convolution", "oneDNN", "1", "dw"), ("dense layer", "MKL", "1", "SGEMM"),
        ("matmul of attention", "MKL", "1", "SGEMM_BATCH"), ("softmax and layer norm", "PyTorch", "1", "")]
    names = [name for name, _ in calls]
    assert library_groups(libraries) == {
        "all": {*names}, "dense layers and matmuls (MKL)": {*names[:2]}, "all others": {*names[2:]},
        "convolutions (MKL)": {names[2]}, "convolutions (oneDNN)": {*names[3:5]},
        "depthwise convolutions (oneDNN)": {names[5]}, "softmax and layer norm (PyTorch)": {names[6]}}


def test_times_of_races_and_of_libraries_meet_at_pytorch_alone():
    """In the races the machine is half as fast; the ratio to NumPy does not know it."""
    wide, single = "matmul 128x768x768", "matmul 1x1000x512"
    libraries = pd.DataFrame([(wide, PYTORCH, 2.0, 100.0), (wide, "NumPy", 1.0, 100.0), (single, PYTORCH, 6.0, 100.0),
                              (single, "NumPy", 1.0, 100.0)], columns=["kernel", "library", "ms", "peak"])
    races = pd.DataFrame([(name, entry, count, 0, "r", ms) for name, took in ((wide, (4.0, 1.5)), (single, (12.0, 4.0)))
                          for (entry, count), ms in zip(((PYTORCH, 0), ("random", 50)), took)],
                         columns=["kernel", "strategy", "measurements", "seed", "race", "ms"])
    assert np.exp(over_library(libraries, races, ("random", 50))).to_dict() == pytest.approx({wide: 0.75, single: 2.0})
    table = matmul_ratios(libraries, races, [(PYTORCH, 0), ("random", 50)])
    assert table["ratio"].tolist() == pytest.approx([2.0, 0.75, 6.0, 2.0]) and (table["layers"] == 1).all()
    assert table["output"].tolist() == ["several rows"] * 2 + ["one row"] * 2
    shares = peak_shares(libraries, races, [("random", 50)])
    gflop = 2e-6 * 128 * 768 * 768
    assert shares.index.tolist() == [wide]
    assert shares["random", "% of peak"].tolist() == pytest.approx([gflop / 1.5])     # of 100 GFLOP/s
    assert shares["PyTorch", "% of peak"].tolist() == pytest.approx([gflop / 2.0])
    assert shares["any search", "ms"].tolist() == [1.5]


@pytest.mark.parametrize("strategies", [(CARRIED, "random", RIVAL), ("random",)], ids=["default", "random"])
def test_the_notebook_shows_a_machine_of_which_one_layer_is_measured_beside_the_stored_ones(
        project, tmp_path, strategies):
    stored = pd.read_csv(project / "notebooks" / "kernels_networks.csv", keep_default_na=False, dtype=str)
    of_layer = stored[(stored["kernel"] == "conv2d 1x1 14x14x256 to 512 stride 2") & (stored["seed"] == "0")
                      & stored["cpu"].str.endswith("model 17)")]
    race = of_layer.loc[of_layer["strategy"] == RIVAL, "race"].iloc[0]
    mine = of_layer[(of_layer["race"] == race) & of_layer["strategy"].isin([PYTORCH, UNTUNED, *strategies])]
    pd.concat([stored, mine.assign(cpu="a CPU")]).to_csv(tmp_path / "kernels_networks.csv", index=False)
    shutil.copy(project / "notebooks" / "kernels_libraries.csv", tmp_path)
    book = json.loads((project / "notebooks" / "08_kernels.ipynb").read_text("utf-8"))
    cells = {cell["id"]: "".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"}
    shown, ids = [], list(cells)
    names = {"folder": tmp_path, "pd": pd, "network_layers": network_layers,
             "display": lambda table: shown.append(table.to_html())}
    for name in ids[ids.index("imports-kernels"):ids.index("gpu-table") + 1]:
        exec(compile(cells[name], name, "exec"), names)
        pyplot.close("all")
    complete = RIVAL in strategies                           # else it is in the last table alone, without its name
    assert ("a CPU" in names["raced"]) is complete is any("a CPU" in table for table in shown)


def test_the_stored_races_are_of_layers_of_known_networks_with_schedules_of_their_spaces():
    stored = read_races(Path(__file__).resolve().parents[1] / "notebooks" / "kernels_networks.csv")
    layers = {kernel.name: kernel for name in network_names() for kernel, _ in network_layers(name)}
    assert set(stored["kernel"]) <= set(layers)
    assert not stored.duplicated([*LAYER_SEED, "race", "strategy", "measurements"]).any()
    older = {f"{CARRIED}, {form}" for form in ("trusted", "doubting", "confirmed", "confirmed, restarted")}
    for (_, _, cpu, *_), same in stored.groupby(LAYER_SEED):
        ours = {OURS, CARRIED, *older, "random"} & set(same["strategy"])              # our space is for CPUs
        assert not ours and RIVAL in set(same["strategy"]) if cpu == "NVIDIA H200" else "random" in ours
        assert {OURS, CARRIED, *older, RIVAL} & set(same["strategy"])
        for _, race in same.groupby("race"):
            assert {PYTORCH, UNTUNED} < set(race["strategy"]) and (race["low"] <= race["high"]).all()
    for row in stored.to_dict("records"):
        assert bool(row["schedule"]) == (row["strategy"] in {OURS, CARRIED, *older, "random"})
        if row["schedule"]:
            schedule_choices(layers[row["kernel"]], list(map(int, row["schedule"].split())))
