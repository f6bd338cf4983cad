"""Tuning: a gain that is there is found and explained, one that is not there is not claimed."""
import subprocess
import sys

import numpy as np
import pytest

from kit.programs import BenchSettings, Tuned, program_from_jax, tune, with_layouts
from lab.studies import tuned

jax = pytest.importorskip("jax", reason="no JAX: pip install '.[own]'")
jnp = jax.numpy
tuning = sys.modules[Tuned.__module__]

GIVEN = tuple(np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((5, 7), (7, 11), (11, 3)))


def chain(a, b, c):
    return jnp.tanh(jnp.tanh(a @ b) @ c)


class FakeBench:
    """A bench on which each option of each group has a known cost, and the clock is noisy."""
    costs, noise, fails = None, 0.0, ()

    def __init__(self, program, args, settings):
        self.program, self.rng, self.restarts = program, np.random.default_rng(1), 0

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        pass

    def compile(self, code):
        return "no such layout" if tuple(code) in self.fails else ""

    def time(self, code):
        cost = np.prod([costs[option] for costs, option in zip(self.costs, code)])
        return {"ns": 1e6 * cost * np.exp(self.noise * self.rng.normal())}

    def time_default(self):
        return self.time(self.program.written)["ns"]

    def restart(self):
        self.restarts += 1


def fake(monkeypatch, best=1.0, noise=0.01, seed=0, fails=()):
    """Let `tune` measure on a fake machine, where one option of group 1 takes `best` of the default's time."""
    costs = 1 + np.random.default_rng(seed).random((2, 10)) / 2
    costs[:, 0] = 1
    costs[1, 6] = best
    monkeypatch.setattr(tuning, "Bench", type("Fake", (FakeBench,), {"costs": costs, "noise": noise, "fails": fails}))


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_is_found_measured_again_and_explained(monkeypatch, seed, tmp_path):
    fake(monkeypatch, 0.8, seed=seed, fails=[(3, 0), (0, 4)])
    found = tune(chain, *GIVEN, budget=40, tie=False, seed=seed)
    assert found.code.tolist() == [0, 6] and len(found.trials) <= 40
    assert found.interval[0] < found.speedup < found.interval[1] and found.speedup == pytest.approx(1.25, rel=0.05)
    words = "group 1: " + "output {1,0} lhs {0,1} rhs {0,1}"
    assert found.matters == {words: pytest.approx(1.25, rel=0.05)}
    assert words in {one["layouts"] for one in found.trials} and found.trials[0]["relative"] > 0
    assert all(one["fault"] for one in found.trials if one["relative"] == np.inf)
    found.save(tmp_path / "fast.json")
    np.testing.assert_allclose(with_layouts(chain, *GIVEN, layouts=tmp_path / "fast.json")(*GIVEN), chain(*GIVEN),
                               rtol=1e-4, atol=1e-5)


def test_what_is_within_the_noise_is_not_called_faster(monkeypatch):
    claimed = 0
    for seed in range(20):
        fake(monkeypatch, 1.0, noise=0.03, seed=seed)
        found = tune(chain, *GIVEN, budget=20, tie=False, seed=seed)
        claimed += bool(found.code.any())
        assert found.code.any() == (found.interval[0] > 1) and bool(found.matters) == found.code.any()
    assert claimed <= 2


def test_a_model_guides_the_search(monkeypatch):
    fake(monkeypatch, 0.8)
    asked = []

    def model(codes):
        asked.append(len(codes))
        return (codes[:, 1] != 6) + (codes[:, 0] != 0).astype(float)
    found = tune(chain, *GIVEN, budget=4, tie=False, model=model)
    assert asked and found.code.tolist() == [0, 6]


def test_a_function_is_tuned_on_this_machine():
    found = tune(chain, *GIVEN, budget=4, bench=BenchSettings(seconds=0.01))
    assert 1 <= len(found.trials) <= 4 and all(np.isfinite(one["relative"]) for one in found.trials)
    np.testing.assert_allclose(found.function(*GIVEN), chain(*GIVEN), rtol=1e-4, atol=1e-5)
    assert found.program.dims.tolist() == program_from_jax(chain, *GIVEN).dims.tolist()


@pytest.mark.parametrize("given, words", [
    (dict(budget=0), "budget is 0; expected a whole number of at least 1"),
    (dict(model=3), "model is 3; expected a function"), (dict(tie=2), "tie is 2")])
def test_arguments_are_checked(given, words):
    with pytest.raises(ValueError, match=words):
        tune(chain, *GIVEN, **given)


def test_notebook_09_tunes_a_function(project, tiny_sample, tmp_path):
    made = tmp_path / "09.ipynb"
    given = {"data_root": tiny_sample, "out_dir": tmp_path / "out", "size": "tiny", "collections": "layout:xla:random"}
    command = [sys.executable, "-m", "papermill", "-k", "python3", project / "notebooks" / "09_own_program.ipynb", made]
    command += [word for pair in given.items() for word in ("-p", *map(str, pair))]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 measurements; speed-up over XLA's default, measured again:" in made.read_text("utf-8")


def test_the_study_of_tuning_prints_a_line_per_program(monkeypatch, capsys):
    found = Tuned(None, None, np.zeros(2), 1.25, (1.1, 1.4), [{}] * 3, {"group 0: output {0,1}": 1.2})
    monkeypatch.setattr(tuned, "tune", lambda function, *args, budget, seed: found)
    tuned.main(["--programs", "mlp_b128"])
    assert capsys.readouterr().out.splitlines()[-1].startswith(
        "| `mlp_b128` | 3 | 1.250 (1.100 to 1.400) | faster | group 0: output {0,1} (1.20) | ")
    with pytest.raises(SystemExit):
        tuned.main(["--programs", "nothing"])
    assert "unknown: nothing; there are alexnet_b1, " in capsys.readouterr().err
