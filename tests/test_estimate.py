"""Minutes that trainings will take are those of a machine whose times are known."""
from types import SimpleNamespace

import pytest
from drawn import drawn_layout

import lab.run.estimate
from kit.recipes import recipes_for
from kit.train import TrainSettings
from lab.run.estimate import minutes_ahead
from lab.run.members import Material, Member

PREPARE, STEP = 3.0, 2.0         # seconds per program and per step


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_minutes_are_those_of_preparing_all_programs_and_of_all_steps(monkeypatch, workers):
    now = [0.0]

    def train(model, graphs, settings, loss):
        assert 1 <= len(graphs) <= 3 and settings.steps <= 40
        now[0] += PREPARE * len(graphs) + STEP * settings.steps
    monkeypatch.setattr(lab.run.estimate, "train", train)
    monkeypatch.setattr(lab.run.estimate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    graphs = [drawn_layout(seed, n=10 + seed) for seed in range(7)]
    own = recipes_for("layout:xla:random")
    many = own["token"]._replace(settings=TrainSettings(600))
    key, folded = ("layout:xla:random",), ("layout:nlp:random",)
    materials = {key: Material(graphs, [], max, {}),
                 folded: Material(graphs, [], max, {}, {str(i): i % 3 for i in range(len(graphs))})}
    members = [Member(key, "token", 0, many, ("test",)), Member(key, "token", 1, many, ("test",)),
               Member(folded, "lightgbm", 0, own["lightgbm"], ("train", "test"))]
    each, together = minutes_ahead(members, materials, workers)
    token, trees = (7 * PREPARE + 600 * STEP) / 60, (7 * PREPARE + STEP) / 60
    assert each == pytest.approx({"token": 2 * token, "lightgbm": 3 * trees})
    assert together == pytest.approx(max(token, (2 * token + 3 * trees) / workers))
    assert minutes_ahead([], {}) == ({}, 0)
