"""The picture of searches holds the medians it was given, leaves out what was not run, and survives no search."""
import matplotlib.pyplot as plt
import numpy as np
import pytest

from lab.plots.search import regret_curves, speed_up_curves


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_curves_are_medians_of_the_budgets_that_were_run():
    runs = {"random": [[0.4, 0.2, 0.1], [0.2, 0.2, 0.0], [0.3, 0.1, 0.2]], "model": [[0.1, 0.0, np.nan]] * 2}
    ax = regret_curves(runs, [5, 30, 1000], guided=["model"], noise=0.004, title="sample data")
    curves = {line.get_label(): line for line in ax.lines}
    assert curves["random"].get_xydata().tolist() == [[5, 0.3], [30, 0.2], [1000, 0.1]]
    assert curves["model"].get_xydata().tolist() == [[5, 0.1], [30, 0.0]]
    assert [curves[name].get_linestyle() for name in ("random", "model")] == ["--", "-"]
    assert curves["noise of a file's measurement"].get_ydata()[0] == 0.004
    assert ax.get_title("left") == "sample data" and "measurements" in ax.get_xlabel() and ax.get_ylim()[0] == 0
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["5", "30", "1000"]
    plt.gcf().canvas.draw()


@pytest.mark.parametrize("runs", [{}, {"random": np.empty((0, 2))}, {"random": [[np.nan, np.nan]]},
                                  {"random": [[0.0, 0.0]]}])
def test_a_picture_of_nothing_can_be_drawn(runs):
    regret_curves(runs, [5, 30])
    plt.gcf().canvas.draw()


def test_gains_of_the_model_have_their_interval_and_the_paper_its_band():
    rows = [{"collection": "tile:xla", "measured": "tile sizes", "search": search, "budget": budget, "speed-up": up,
             "low": up - 0.1, "high": up + 0.1, "programs": 4}
            for search, ups in (("with model", (1.1, 1.3)), ("random", (0.9, 1.2))) for budget, up in zip((5, 30), ups)]
    ax = speed_up_curves(rows, title="sample data")
    curves = {line.get_label(): line for line in ax.lines}
    assert curves["tile:xla, with model"].get_xydata().tolist() == [[5, 1.1], [30, 1.3]]
    assert curves["tile:xla, random"].get_xydata().tolist() == [[5, 0.9], [30, 1.2]]
    assert [line.get_linestyle() for line in curves.values()] == ["-", "--"] and len(ax.collections) == 1
    assert "autotuner on production\nmodels (paper)" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert speed_up_curves([]).get_legend() is None
    plt.gcf().canvas.draw()
