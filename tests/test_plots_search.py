"""Pictures of searches hold the numbers that they were given."""
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lab.plots.search import speed_up_by_search, speed_up_curves


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_gains_of_the_model_have_their_interval():
    rows = [{"collection": "tile:xla", "measured": "tile sizes", "search": search, "budget": budget, "speed-up": up,
             "low": up - 0.1, "high": up + 0.1, "programs": 4}
            for search, ups in (("with model", (1.1, 1.3)), ("random", (0.9, 1.2))) for budget, up in zip((5, 30), ups)]
    ax = speed_up_curves(rows, title="sample data")
    curves = {line.get_label(): line for line in ax.lines}
    assert curves["tile:xla, with model"].get_xydata().tolist() == [[5, 1.1], [30, 1.3]]
    assert curves["tile:xla, random"].get_xydata().tolist() == [[5, 0.9], [30, 1.2]]
    assert [line.get_linestyle() for line in curves.values()] == ["-", "--"] and len(ax.collections) == 1
    assert speed_up_curves([]).get_legend() is None
    plt.gcf().canvas.draw()


def test_each_program_has_a_row_in_the_order_of_the_last_search():
    rows = [(name, search, budget, up + budget / 100, up - 0.1, up + 0.1)
            for name, ups in (("a", (1.3, 1.4)), ("b", (1.1, 1.2)))
            for search, up in zip(("random", "with model"), ups) for budget in (5, 30)]
    table = pd.DataFrame(rows, columns=["program", "strategy", "budget", "speedup", "low", "high"])
    ax = speed_up_by_search(table, ("random", "with model"), title="x")
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["b", "a"]
    curves = {line.get_label(): line.get_xdata() for line in ax.lines}
    assert [*curves["random"]] == pytest.approx([1.4, 1.6]) and [*curves["with model"]] == pytest.approx([1.5, 1.7])
    plt.gcf().canvas.draw()
