"""Minutes that trainings will take are those of a machine whose times are known."""
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from drawn import drawn_layout

import lab.training.estimate
from kit.recipes import recipes_for
from kit.train import TrainSettings
from lab.training import Member
from lab.training.estimate import minutes_ahead

PREPARE, STEP = 3.0, 2.0         # seconds per program and per step
KEY, OTHER = ("layout:xla:random",), ("layout:nlp:random",)


def given(graphs):
    """In place of Data: each collection has the same training graphs."""
    return SimpleNamespace(graphs=lambda collections: [graph for _ in collections for graph in graphs])


def timed_by(monkeypatch, seconds):
    """Training takes `seconds(graphs, steps)` on a clock of its own."""
    now = [0.0]

    def train(model, graphs, settings, loss):
        now[0] += seconds(graphs, settings.steps)
    monkeypatch.setattr(lab.training.estimate, "train", train)
    monkeypatch.setattr(lab.training.estimate, "time", SimpleNamespace(monotonic=lambda: now[0]))


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_minutes_are_those_of_preparing_all_programs_and_of_all_steps(monkeypatch, workers):
    def seconds(graphs, steps):
        assert 1 <= len(graphs) <= 3 and steps <= 40
        return PREPARE * len(graphs) + STEP * steps
    timed_by(monkeypatch, seconds)
    graphs = [drawn_layout(seed, n=10 + seed) for seed in range(7)]
    own = recipes_for("layout:xla:random")
    many = own["token"]._replace(settings=TrainSettings(600))
    members = [Member("token", 0, many, KEY, KEY), Member("token", 1, many, KEY, KEY),
               *(Member("lightgbm", 0, own["lightgbm"], OTHER, OTHER, fold=fold) for fold in range(3))]
    token, trees = (7 * PREPARE + 600 * STEP) / 60, (7 * PREPARE + STEP) / 60
    together = max(token, (2 * token + 3 * trees) / workers)
    assert minutes_ahead(members, given(graphs), workers) == (
        f"about {together:.0f} min to train 5 models; one after another: token {2 * token:.1f} min, "
        f"lightgbm {3 * trees:.1f} min")


def test_a_model_of_two_collections_prepares_the_programs_of_both(monkeypatch):
    timed_by(monkeypatch, lambda graphs, steps: PREPARE * len(graphs) + STEP * steps)
    one, graphs = recipes_for(KEY[0])["token"].changed(steps=60), [drawn_layout(seed) for seed in range(5)]
    said = minutes_ahead([Member("token", 0, one, learnt, learnt) for learnt in (KEY, KEY + OTHER)], given(graphs), 1)
    assert said.endswith(f"token {(5 * PREPARE + 60 * STEP + 10 * PREPARE + 60 * STEP) / 60:.1f} min")


def test_what_every_training_takes_does_not_count_for_each_program(monkeypatch):
    timed_by(monkeypatch, lambda graphs, steps: 0.2 + 0.1 * len(graphs) + 0.02 * steps)
    graphs, one = [drawn_layout(0, n=10)] * 3000, recipes_for("layout:xla:random")["token"]
    members = [Member("token", 0, one._replace(settings=TrainSettings(100)), KEY, KEY)]
    said = minutes_ahead(members, given(graphs), 1)
    assert float(re.search(r"token (\S+) min", said)[1]) * 60 == pytest.approx(300, rel=0.2)


def test_trees_are_timed_on_as_many_rows_of_a_program_as_they_will_see(monkeypatch):
    seen = []
    timed_by(monkeypatch, lambda graphs, steps: seen.extend(len(g.config_runtime) for g in graphs) or 2)
    graphs, one = [drawn_layout(0, c=50)] * 10, recipes_for("layout:xla:random")["lightgbm"]
    one = one._replace(shape=replace(one.shape, rows=200))
    minutes_ahead([Member("lightgbm", 0, one, KEY, KEY)], given(graphs), 1)
    assert {*seen} == {20}
