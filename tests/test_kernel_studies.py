"""The command that measures networks, and the stored races."""
import os
import re
import sys

import numpy as np
import pandas as pd
import pytest

from kit.files import locked
from lab.kernels.bench import PYTORCH
from lab.kernels.carried import definition, known_cost, known_measurements
from lab.kernels.networks import known_layers
from lab.kernels.results import ENTRY, FORMS, LAYER_SEED, NEWEST, compare_newest, read_races
from lab.kernels.schedules import schedule_choices
from lab.kernels.searches import CARRIED, OURS, RIVAL, UNTUNED
from lab.studies.kernels import measure_networks
from lab.studies.kernels.measure_networks import measured_table


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs the command on tables of its own; what it would measure is handed to `plans`."""
    plans = []
    monkeypatch.setattr(measure_networks, "TABLE", tmp_path / "races.csv")
    monkeypatch.setattr(measure_networks, "MEASURED", tmp_path / "measured.csv.gz")
    monkeypatch.setattr(measure_networks, "FOLDER", tmp_path / "usual")
    monkeypatch.setattr(measure_networks, "measure_layers", lambda plan, *about: plans.append(plan) or (0, ["a layer"]))

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["measure_networks.py", *args])
        measure_networks.main()
        return plans[-1]
    return run


def test_a_layer_of_two_networks_is_planned_once_per_seed(command, capsys):
    jobs = command("resnet18,resnet50", "--seeds", "0", "5", "--searches", "random", RIVAL, "--measurements", "9")
    names = [same[0].kernel.name for same in jobs]
    assert names.count("conv2d 7x7 224x224x3 to 64 stride 2") == 2 and len(names) == 2 * len(set(names))
    assert {tuple((job.strategy, job.measurements) for job in same) for same in jobs} == {(("random", 9), (RIVAL, 9))}
    assert "not begun: a layer" in capsys.readouterr().out


@pytest.mark.parametrize("args, wrong", [
    ("bert --measurements 0", "measurements is 0; expected a whole number of at least 1"),
    ("bert --starts 0", "starts is 0; expected a whole number of at least 1"),
    ("bert --seeds x", "argument --seeds: invalid int value: 'x'"),
    ("bert --searches grid", "argument --searches: invalid choice: 'grid'"),
    ("lenet", "network is 'lenet'; expected one of alexnet, ")])
def test_a_wrong_argument_is_named_before_anything_is_measured(command, capsys, args, wrong):
    with pytest.raises(SystemExit):
        command(*args.split())
    assert wrong in capsys.readouterr().err


def test_two_commands_do_not_measure_at_the_same_time(tmp_path, command, capsys):
    with locked(tmp_path / "usual" / "lock"), pytest.raises(SystemExit):
        command("bert")
    assert f"another command (process {os.getpid()}) measures" in capsys.readouterr().err


def drawn_search(name="softmax 1536x128", seconds=(2e-6, np.inf), **other):
    return {"kernel": name, "definition": "now", "strategy": "random", "seed": 0, "seconds": [*seconds],
            "codes": [[i, 1] for i in range(len(seconds))],
            "machine": {"cpu": "a CPU", "threads": 1, "tvm": "0"}, **other}


def test_a_table_of_measurements_keeps_the_longest_search_and_the_last_folder(tmp_path, monkeypatch):
    searches = [drawn_search(), drawn_search(seconds=[1.23456789e-6]), drawn_search(seed=1, seconds=[1e-6] * 3),
                drawn_search("layer norm 128x768", strategy=OURS)]
    monkeypatch.setattr("lab.studies.kernels.measure_networks.finished_searches", lambda folder: searches)
    table = measured_table(tmp_path, pd.DataFrame())
    assert table.to_dict("list") == {"kernel": ["softmax 1536x128"] * 2, "definition": ["now"] * 2,
                                     "cpu": ["a CPU"] * 2, "threads": [1, 1], "codes": ["0 1", "1 1"],
                                     "us": [2.0, np.inf]}
    searches[:] = [drawn_search("layer norm 128x768")]
    again = measured_table(tmp_path, table)
    assert [*again["us"]] == [2.0, np.inf] * 2 and measured_table(tmp_path, again).equals(again)
    searches[:] = [drawn_search("layer norm 128x768", seconds=[5e-6])]                   # shorter than the stored one
    assert measured_table(tmp_path, again).equals(again)
    searches[:] = [drawn_search("layer norm 128x768", seconds=[5e-6, 6e-6])]             # as long
    assert [*measured_table(tmp_path, again)["us"]] == [2.0, np.inf, 5.0, 6.0]


def test_races_and_measurements_of_a_folder_are_added_to_the_tables(tmp_path, command, monkeypatch):
    rows = pd.DataFrame({"cpu": "c", "kernel": "a", "seed": 0, "race": ["1", "1", "2"], "strategy": ["x", "y", "x"],
                         "measurements": 50, "ms": [1.0, 2.0, 3.0], "seconds": 1.0, "needed": [7, 8, 9], "seen": 1.0})
    rows.to_csv(tmp_path / "races.csv", index=False)
    measured_of([drawn_search()], tmp_path, monkeypatch).to_csv(tmp_path / "measured.csv.gz", index=False)
    new = rows.iloc[1:].assign(ms=[4.0, 5.0], race=["1", "3"]).drop(columns=["needed", "seen"])
    monkeypatch.setattr(measure_networks, "race_table", lambda folder: new)
    monkeypatch.setattr(measure_networks, "finished_searches", lambda folder: [drawn_search("layer norm 128x768")])
    measure_networks.write_rows(tmp_path)
    found = read_races(tmp_path / "races.csv")
    assert found[["race", *ENTRY[:1], "ms"]].values.tolist() == [
        ["1", "x", 1.0], ["2", "x", 3.0], ["1", "y", 4.0], ["3", "x", 5.0]]
    measured = pd.read_csv(tmp_path / "measured.csv.gz")
    assert measured["kernel"].tolist() == ["softmax 1536x128"] * 2 + ["layer norm 128x768"] * 2
    before = (tmp_path / "measured.csv.gz").read_bytes()
    measure_networks.write_rows(tmp_path)
    assert (tmp_path / "measured.csv.gz").read_bytes() == before and len(read_races(tmp_path / "races.csv")) == 4


def measured_of(searches, folder, monkeypatch):
    """The table of measurements of such searches."""
    monkeypatch.setattr(measure_networks, "finished_searches", lambda folder: searches)
    return measured_table(folder, pd.DataFrame())


def test_measurements_of_another_definition_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.kernels.carried.MEASURED", tmp_path / "measured.csv.gz")
    kernel, layer = known_layers()["matmul 1x4096x4096"], known_layers()["matmul 128x768x768"]
    now = [drawn_search(layer.name, definition=definition(layer)), drawn_search("matmul 128x768x3072")]
    measured_of(now, tmp_path, monkeypatch).to_csv(tmp_path / "measured.csv.gz", index=False)
    (found, codes, seconds), = known_measurements(kernel)
    assert known_cost(known_layers()["softmax 1536x128"]) is None              # nothing is known of its like
    assert found == layer and codes.tolist() == [[0, 1], [1, 1]] and seconds.tolist() == [2e-6, np.inf]


@pytest.fixture(scope="module")
def stored(project):
    """The stored races."""
    return read_races(project / "notebooks" / "kernels_networks.csv")


def test_the_readme_tells_what_the_stored_races_say(project, stored):
    found = compare_newest(stored, [((NEWEST, 100), (RIVAL, 300))])
    assert len(found) == 2 and {f"{100 * (1 - ratio):.0f}%" for ratio in found["ratio"]} == {"3%"}
    readme, page = ((project / name).read_text("utf-8") for name in ("README.md", "notebooks/kernels.md"))
    assert "3% less kernel time than TVM's MetaSchedule in a fifth of its search time" in readme
    shares = re.findall(r"^\| \w+ \| ours, newest form, 100 \| MetaSchedule, 300 \|.* (\S+) \|$", page, re.M)
    assert shares == ["0.19", "0.19"]


def test_the_stored_races_are_of_layers_of_known_networks_with_schedules_of_their_spaces(stored):
    layers = known_layers()
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
