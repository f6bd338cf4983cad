"""Commands that write the stored tables of kernels, and the tables of notebooks/kernels.md that come from them."""
import importlib.util
import os
import platform
import re
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kit.files import locked
from lab.kernels.carried import definition, known_cost, known_measurements
from lab.kernels.measure import PYTORCH
from lab.kernels.networks import known_layers, layer_kernel, multiplications, network_layers, network_names
from lab.kernels.results import FORMS, LAYER_SEED, NEWEST, compare_newest, read_races
from lab.kernels.schedules import schedule_choices
from lab.kernels.searches import CARRIED, DESCENT, OURS, RIVAL, UNTUNED
from lab.studies.kernels import library_peak, measure_networks, page_tables, trace_networks
from lab.studies.kernels.measure_networks import measured_table, named_searches, planned
from lab.studies.kernels.page_tables import (
    called_libraries,
    every_form,
    layer_ratios,
    library_groups,
    matmul_ratios,
    measurements_saved,
    over_library,
    peak_shares,
    winners_luck,
)


def test_a_number_behind_a_search_is_its_number_of_measurements():
    assert named_searches(f"random; {RIVAL} 3000;{DESCENT} 100", 300) == [
        ("random", 300), (RIVAL, 3000), (DESCENT, 100)]
    with pytest.raises(ValueError, match=f"^no search grid; there are {OURS}; {OURS}, carried over; "):
        named_searches("grid 5;random", 300)
    jobs = planned(["resnet18", "resnet50"], ["7x7 224"], [0, 5], [("random", 9), (RIVAL, 7)], 1, None)
    assert [[(job.strategy, job.measurements, job.seed) for job in same] for same in jobs] == [
        [("random", 9, seed), (RIVAL, 7, seed)] for seed in (0, 5)]
    with pytest.raises(ValueError, match="^no layer of bert, unet has 'conv 1x1' or '7x7' in its name$"):
        planned(["bert", "unet"], ["conv 1x1", "7x7"], [0], [("random", 9)], 1, None)


def test_what_is_left_is_said_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure_networks, "TABLE", tmp_path / "races.csv")
    monkeypatch.setattr(measure_networks, "MEASURED", tmp_path / "measured.csv.gz")
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--layers", "softmax", "--seeds", "0,1",
                                      "--searches", "random", "--folder", str(tmp_path / "jobs"), "--only-left"])
    measure_networks.main()
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
def test_a_wrong_number_or_file_is_named_before_anything_is_measured(tmp_path, monkeypatch, capsys, args, wrong):
    monkeypatch.setattr(measure_networks, "measure_layers", None)
    (tmp_path / "spoiled.json").write_text('{"kernel": "softm')
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--folder", str(tmp_path), "--only-left",
                                      *args.replace("_", " ").split(" ", 1)][:None if args else -1])
    with pytest.raises(SystemExit):
        measure_networks.main()
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize("place", ["mine", "usual"])
def test_two_commands_measure_neither_into_one_folder_nor_into_one_table(tmp_path, monkeypatch, capsys, place):
    monkeypatch.setattr(measure_networks, "FOLDER", tmp_path / "usual")
    monkeypatch.setattr(sys, "argv", ["measure_networks.py", "bert", "--folder", str(tmp_path / "mine")])
    monkeypatch.setattr(measure_networks, "measure_layers", None)
    with locked(tmp_path / place / "lock"), pytest.raises(SystemExit):
        measure_networks.main()
    said = capsys.readouterr().err
    assert f"another command (process {os.getpid()}) measures and holds {tmp_path / place / 'lock'}" in said


def counted_flops(network, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return counter.get_total_flops()


def check_trace(name, network, x):
    """The table is the trace, and PyTorch counts as many products."""
    traced = [(layer_kernel(*layer), count) for layer, count in trace_networks.traced_layers(network, x).items()]
    assert traced == network_layers(name)
    products = sum(multiplications(*layer) for layer in traced if layer[0].kind not in ("softmax", "layer norm"))
    assert counted_flops(network, x) == 2 * products


def test_the_table_is_the_trace_of_the_networks_that_are_written_here():
    with torch.device("meta"):
        check_trace("unet", trace_networks.UNet(), torch.empty(1, 3, 256, 256))
        check_trace("bert", torch.nn.Sequential(*(trace_networks.EncoderLayer() for _ in range(12))),
                    torch.empty(128, 768))
        check_trace("vit_b_32", trace_networks.VisionTransformer(), torch.empty(1, 3, 224, 224))


@pytest.mark.skipif(not importlib.util.find_spec("torchvision"), reason="torchvision is not installed")
def test_the_table_is_the_trace_of_the_networks_of_torchvision():
    networks = trace_networks.known_networks()
    assert list(networks) == network_names()
    for name, (network, x) in networks.items():
        check_trace(name, network, x)
    from torchvision import models
    with torch.device("meta"):
        theirs = models.vit_b_32()
    network, image = networks["vit_b_32"]
    assert sum(map(torch.numel, theirs.parameters())) == sum(map(torch.numel, network.parameters())) + 50 * 768
    assert counted_flops(network, image) == counted_flops(theirs, image)


@pytest.mark.parametrize("layer", [torch.nn.Conv2d(4, 4, 3, groups=2), torch.nn.Conv2d(4, 4, (1, 3)),
                                   torch.nn.Conv2d(4, 4, 3, dilation=2), torch.nn.ConvTranspose2d(4, 4, 3, 2)], ids=str)
def test_a_layer_without_a_kernel_is_refused(layer):
    with pytest.raises(ValueError, match="^no kernel for Conv.*; expected square taps, one stride, no dilation"):
        trace_networks.layer_row(layer, [torch.empty(1, 4, 9, 9)])


def test_a_transposed_convolution_is_the_matmul_of_the_table():
    layer, x = torch.nn.ConvTranspose2d(6, 5, 2, 2, bias=False), torch.randn(1, 6, 3, 4)
    kind, (rows, columns, depth), _, _ = trace_networks.layer_row(layer, [x])
    product = x[0].permute(1, 2, 0).reshape(rows, depth) @ layer.weight.permute(0, 2, 3, 1).reshape(depth, columns)
    theirs = layer(x)[0].reshape(5, 3, 2, 4, 2).permute(1, 3, 2, 4, 0).reshape(rows, columns)
    assert kind == "matmul"
    torch.testing.assert_close(product, theirs)


def drawn_search(name="softmax 1536x128", seconds=(2e-6, np.inf), **other):
    return {"kernel": name, "definition": "now", "strategy": "random", "seed": 0, "seconds": [*seconds],
            "codes": [[i, 1] for i in range(len(seconds))],
            "machine": {"cpu": "a CPU", "threads": 1, "tvm": "0"}, **other}


def test_a_table_of_measurements_keeps_the_longest_search_and_the_last_folder(tmp_path, monkeypatch):
    searches = [drawn_search(), drawn_search(seconds=[1.23456789e-6]), drawn_search(seed=1, seconds=[1e-6] * 3),
                drawn_search("layer norm 128x768", strategy=OURS)]
    monkeypatch.setattr("lab.studies.kernels.measure_networks.finished_searches", lambda folder: searches)
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
    monkeypatch.setattr("lab.studies.kernels.measure_networks.tvm_version", lambda: "now")
    for searches[:] in ([old, new], [new, old]):
        assert [*measured_table(tmp_path)["us"]] == [2.0]                                # though the other is longer


def test_measurements_of_another_definition_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.kernels.carried.MEASURED", tmp_path / "measured.csv.gz")
    kernel, layer = known_layers()["matmul 1x4096x4096"], known_layers()["matmul 128x768x768"]
    now = [drawn_search(layer.name, definition=definition(layer)), drawn_search("matmul 128x768x3072")]
    monkeypatch.setattr("lab.studies.kernels.measure_networks.finished_searches", lambda folder: now)
    measured_table(tmp_path).to_csv(tmp_path / "measured.csv.gz", index=False)
    (found, codes, seconds), = known_measurements(kernel)
    assert known_cost(known_layers()["softmax 1536x128"]) is None              # nothing is known of its like
    assert found == layer and codes.tolist() == [[0, 1], [1, 1]] and seconds.tolist() == [2e-6, np.inf]


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


def test_layers_are_compared_one_by_one_and_the_slowest_is_first():
    one = pd.DataFrame([(kernel, strategy, 50, seed, "1", "a CPU", ms, 1.0) for seed in (0, 1)
                        for kernel, strategy, ms in (("a", "x", 1.0 + seed), ("a", "y", 2.0 + 2 * seed),
                                                     ("b", "x", 3.0), ("b", "y", 3.1), ("c", "x", 1.0))],
                       columns=["kernel", "strategy", "measurements", "seed", "race", "cpu", "ms", "seconds"])
    found = layer_ratios(pd.concat([one, one.assign(cpu="another CPU", ms=one["ms"] ** 2)]), ("x", 50), ("y", 50))
    assert found[["cpu", "layer", "ratio", "runs"]].values.tolist() == [
        [cpu, layer, pytest.approx(ratio), 2] for cpu, layer, ratio in (
            ("a CPU", "b", 3.0 / 3.1), ("another CPU", "b", (3.0 / 3.1) ** 2), ("a CPU", "a", 0.5),
            ("another CPU", "a", 0.25))]
    none = layer_ratios(one, ("x", 50), ("z", 50))
    assert none.empty and [*none] == [*found]


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


@pytest.fixture(scope="module")
def stored(project):
    """(the stored races, the stored table of libraries)."""
    return read_races(project / "notebooks" / "kernels_networks.csv"), pd.read_csv(
        project / "notebooks" / "kernels_libraries.csv")


def test_the_page_has_the_tables_of_the_stored_results(project, stored):
    page = (project / "notebooks" / "kernels.md").read_text("utf-8")
    tables = page_tables.page_tables(*stored)
    for name, table in tables.items():
        assert f"<!-- {name} -->\n{page_tables.as_markdown(table)}<!-- end {name} -->\n" in page, name
    assert page.count("<!-- end ") == len(tables)


def test_the_readme_tells_what_the_stored_races_say(project, stored):
    races, _ = stored
    found = compare_newest(races, [((NEWEST, 100), (RIVAL, 300))])
    assert len(found) == 2 and {f"{100 * (1 - ratio):.0f}%" for ratio in found["ratio"]} == {"3%"}
    readme, page = ((project / name).read_text("utf-8") for name in ("README.md", "notebooks/kernels.md"))
    assert "3% less kernel time than TVM's MetaSchedule in a fifth of its search time" in readme
    shares = re.findall(r"^\| \w+ \| ours, newest form, 100 \| MetaSchedule, 300 \|.* (\S+) \|$", page, re.M)
    assert shares == ["0.19", "0.19"]


def test_what_pytorch_calls_was_read_for_each_stored_layer_and_no_library_is_above_the_peak(stored):
    (races, libraries), kernels = stored, known_layers()
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


def test_the_stored_races_are_of_layers_of_known_networks_with_schedules_of_their_spaces(stored):
    stored, layers = stored[0], known_layers()
    assert set(stored["kernel"]) <= set(layers)
    assert not stored.duplicated([*LAYER_SEED, "race", "strategy", "measurements"]).any()
    older = {*FORMS[1:]}
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


def test_the_clock_is_counted_by_additions_and_the_peak_by_the_faster_width():
    kernel = layer_kernel("matmul", (4, 8, 16))                             # 2 * 4 * 8 * 16 = 1024 operations
    loops = {"adds": (None, 3e6), "products": (None, 9e6), "fma256": (None, 32e6), "fma512": (None, 64e6)}
    calls = [("PyTorch", "MKL SGEMM", "1"), ("PyTorch", "MKL SGEMM", "1"), ("NumPy", "OpenBLAS", "2")]
    seconds = np.tile([1e-3, 3e-3, 1e-3, 1e-3, 32e-9, 16e-9, 64e-9], (5, 1))
    rows = library_peak.layer_rows(kernel, calls, loops, seconds)
    assert rows["library"].tolist() == ["PyTorch", "NumPy"] and rows["gflops"].tolist() == pytest.approx([64, 16])
    assert rows["clock"].tolist() == pytest.approx([3, 3]) and rows["peak"].tolist() == pytest.approx([64, 64])
    assert rows["percent"].tolist() == pytest.approx([100, 25]) and rows["rounds"].tolist() == [5, 5]
    seconds[:, 1] *= 1.25
    with pytest.raises(RuntimeError, match="^the clock is 3.00 GHz by additions and 2.40 GHz by multiplications; exp"):
        library_peak.layer_rows(kernel, calls, loops, seconds)


def test_the_logs_say_which_library_pytorch_calls():
    x, w = torch.randn(1, 8, 16, 16), torch.randn(8, 8, 5, 5)
    calls = {"softmax": lambda: torch.softmax(x, 3), "matmul": lambda: x[0, 0] @ x[0, 1],
             "convolution": lambda: torch.nn.functional.conv2d(x, w)}
    found = {name: library_peak.library_of(call) for name, call in calls.items()}
    assert found["softmax"] == "PyTorch"
    if torch.backends.mkl.is_available():
        assert found["matmul"] == "MKL SGEMM"
    if torch.backends.mkldnn.is_available():
        assert found["convolution"].startswith("oneDNN ")


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("gcc") or not hasattr(os, "sched_setaffinity"),
                    reason="the loops are x86-64, compiled by gcc, on Linux")
def test_libraries_are_measured_on_one_core_and_rows_of_other_machines_stay(tmp_path, monkeypatch):
    pinned, threads = [], torch.get_num_threads()
    monkeypatch.setattr(library_peak.os, "sched_setaffinity", lambda pid, cores: pinned.append(cores))
    monkeypatch.setattr(library_peak, "APART", 0.5)                         # other tests run on this core
    monkeypatch.setattr(library_peak, "STEPS", 200)
    table, layers = tmp_path / "libraries.csv", ["batch matmul 12x50x64x50", "matmul 1x1000x512", "softmax 600x50"]
    options = ["--rounds", "1", "--passes", "2", "--table", str(table), "--core", "1", "--layers"]
    try:
        library_peak.main([*options, layers[0]])
        old = pd.read_csv(table)
        old.assign(cpu="another CPU").to_csv(table, index=False)
        library_peak.main([*options, *layers])
    finally:
        torch.set_num_threads(threads)
    found = pd.read_csv(table)
    assert pinned == [{1}, {1}] and (found["cpu"] == "another CPU").sum() == len(old) == 2
    mine = found[found["cpu"] != "another CPU"]
    assert [*zip(mine["kernel"], mine["library"])] == [
        (layers[0], "PyTorch"), (layers[0], "NumPy"), (layers[1], "PyTorch"), (layers[1], "NumPy"),
        (layers[2], "PyTorch")]
    assert (mine["rounds"] == 2).all() and (mine["clock"] > 0.1).all()
    assert mine["gflops"].notna().tolist() == [True] * 4 + [False]
    with pytest.raises(SystemExit):
        library_peak.main(["--layers", "no layer"])
