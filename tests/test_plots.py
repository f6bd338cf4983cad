"""Pictures hold what they were given, are labelled, and survive one graph and none."""
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.collections import LineCollection
from matplotlib.text import Text

from kit.data import OPCODE_NAMES, LayoutGraph
from lab.plots import (
    collection_lines,
    graph_scatter,
    leads_with_intervals,
    learning_curve,
    learning_curves,
    opcode_shares,
    per_graph_scores,
    predicted_against_measured,
    program_graph,
    rank_agreement,
    runtime_spread,
    scores_with_intervals,
    table_of_terms,
    validation_against_leaderboard,
)
from lab.plots.style import MODELS, collection_style, model_styles

NAN = float("nan")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def history(scores, best=2, seconds=3.0):
    return {"step": [1, 2, 3][:len(scores)], "loss": [3.0, 2.0, 1.0][:len(scores)], "score": scores, "best_step": best,
            "seconds": seconds}


#   0 (parameter) -> 1 (dot, group 0) -> 2 (add) -> 3 (dot, group 0) -> 5 (reshape, group 1)
#                                        4 (constant) ----------------^
def drawn_graph():
    edges = np.array([[1, 0], [2, 1], [3, 2], [5, 3], [5, 4]])
    opcode = np.array([OPCODE_NAMES.index(n) for n in ("parameter", "dot", "add", "dot", "constant", "reshape")])
    return LayoutGraph("drawn", np.zeros((6, 140), np.float32), opcode, edges, np.array([1, 3, 5]), np.array([0]),
                       np.array([[0, 0], [1, 0]], np.uint8), np.array([0, 0, 1]), np.zeros((3, 2, 18), np.int8),
                       np.array([10, 20]))


def draw_drawn(nodes, **options):
    return program_graph(drawn_graph(), np.array(nodes, dtype=int), OPCODE_NAMES, **options)


def draw_amounts(nodes, **options):
    return draw_drawn(nodes, amounts=[-2.0, 0.0, 1.0], unit="cost", **options)


def described(name, runtime, noise=None, collection="tile:xla"):
    quantiles = ("shortest", "quarter", "median", "three_quarters", "longest")
    return dict(zip(quantiles, np.quantile(runtime, [0, 0.25, 0.5, 0.75, 1]).tolist()),
                collection=collection, name=name, noise=noise)


COUNTS = np.bincount([2, 2, 26, 34], minlength=len(OPCODE_NAMES))
PICTURES = {                  # picture: [of several graphs, of one, of none]
    "learning_curve": (learning_curve, [
        ({"a": [history([0.1, 0.3, 0.2]), history([0.2, 0.5, 0.1])], "b": [history([0.3, 0.3, 0.3])]},),
        ({"a": [history([NAN], best=1)]},), ({},)]),
    "scores_with_intervals": (scores_with_intervals, [
        ([("tile:xla", "a", 0.9, 0.8, 0.95), ("tile:xla", "b", 0.8, 0.7, 0.9)], {"tile:xla": 0.97}),
        ([("tile:xla", "a", 0.9, NAN, NAN)],), ([],)]),
    "per_graph_scores": (per_graph_scores, [
        ({"a": {"g": 0.1, "h": 0.5}, "b": {"g": 0.2}}, {"h": 0.9}), ({"a": {"g": 0.1}},), ({},)]),
    "leads_with_intervals": (leads_with_intervals, [
        ([("tile:xla", "a", 0.1, -0.1, 0.3), ("tile:xla", "b", -0.2, -0.3, -0.1)],),
        ([("tile:xla", "a", 0.1, NAN, NAN)],), ([],)]),
    "validation_against_leaderboard": (validation_against_leaderboard, [
        ([("1", 0.6, 0.5, 0.7, 0.62, 0.61, False), ("2", 0.7, NAN, NAN, 0.65, None, False)],),
        ([("1", 0.6, 0.5, 0.7, None, 0.61, True)],), ([],)]),
    "graph_scatter": (graph_scatter, [
        ({"tile:xla": [(1, 2), (30, 4000)]}, "nodes", "configurations", ((1, "equal"),)),
        ({"tile:xla": [(5, 7)]}, "nodes", "configurations"), ({"tile:xla": []}, "nodes", "configurations")]),
    "collection_lines": (collection_lines, [
        ({("tile:xla", "near"): ([0, 1], [2, 3]), ("tile:xla", "all"): ([0, 1], [4, 5])}, "hops", "kept (%)"),
        ({("tile:xla", ""): ([0], [2])}, "hops", "kept (%)"), ({}, "hops", "kept (%)")]),
    "opcode_shares": (opcode_shares, [
        ({"tile:xla": COUNTS, "layout:xla:random": COUNTS[::-1]}, OPCODE_NAMES), ({"tile:xla": COUNTS}, OPCODE_NAMES),
        ({}, OPCODE_NAMES)]),
    "runtime_spread": (runtime_spread, [
        ([described("g", [1.0, 1.5, 1.0], 0.01), described("h", [2, 4])],), ([described("g", [7, 9])],),
        ([described("same", [5, 5])],)]),
    "program_graph": (draw_drawn, [([0, 1, 2, 3, 4, 5],), ([1],), ([],)]),
    "table_of_terms": (table_of_terms, [([[0, 1, np.nan], [2, 0, 1]], ["a", "b"]), ([[1.0]], ["a"]), ([], [])]),
    "program_graph, amounts": (draw_amounts, [([0, 1, 2, 3, 4, 5],), ([1],), ([],)]),
}
CASES = [pytest.param(*PICTURES[name], id=name) for name in PICTURES]


@pytest.mark.parametrize("draw, cases", CASES)
def test_axes_are_labelled_for_many_graphs_one_and_none(draw, cases):
    for case in cases:
        ax = draw(*case, title="sample data: a title")
        assert ax.get_xlabel() and ax.get_ylabel() and ax.get_title(loc="left") == "sample data: a title"
        ax.figure.draw_without_rendering()                       # a warning, as about a missing glyph, is an error
        assert ax.figure.get_size_inches()[0] * ax.figure.dpi == 800


@pytest.mark.parametrize("draw, cases", CASES)
def test_only_an_empty_picture_says_that_there_is_nothing_to_show(draw, cases):
    said = ["nothing to show" in [text.get_text() for text in draw(*case).texts] for case in cases]
    assert said == [False, draw is learning_curve, True]         # its one curve has no validation score


def lines(ax, label=None):
    """{label: line} of the lines that have a label of their own."""
    found = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    return found if label is None else found[label]


def test_a_learning_curve_is_the_mean_over_seeds_with_a_dot_at_the_weights_that_were_kept():
    a, b = history([0.1, 0.3, 0.2], best=2), history([0.2, 0.5, 0.4], best=2, seconds=9.0)
    ax = learning_curve({"model": [a, b]})
    np.testing.assert_allclose(lines(ax, "model (2 seeds)").get_xydata(), [(2, 0.15), (4, 0.4), (6, 0.3)])
    dots = [tuple(line.get_xydata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert dots == [(2, 0.3), (6, 0.5)]


def test_each_score_has_its_dot_its_interval_and_its_collections_ceiling():
    rows = [("tile:xla", "a", 0.9, 0.8, 0.95), ("layout:xla:random", "a", 0.5, NAN, NAN),
            ("tile:xla", "b", 0.7, 0.6, 0.8)]
    ax = scores_with_intervals(rows, {"tile:xla": 0.97, "layout:xla:random": NAN})
    assert list(lines(ax)) == ["a", "b", "noise ceiling"]
    assert lines(ax, "a").get_xdata().tolist() == [0.9, 0.5]
    assert lines(ax, "a").get_ydata().tolist() == [0, 3] and lines(ax, "b").get_ydata().tolist() == [1]
    assert lines(ax, "noise ceiling").get_xydata().tolist() == [[0.97, -0.5], [0.97, 1.5]]
    assert ax.get_yticks().tolist() == [0.5, 3]
    ends = np.array([path.vertices[:, 0] for bars in ax.collections for path in bars.get_paths()])
    assert ends[np.isfinite(ends).all(axis=1)].tolist() == [[0.8, 0.95], [0.6, 0.8]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["tile:xla", "layout:xla:random"]


def test_a_model_looks_the_same_in_every_picture_and_never_as_another_model_or_the_ceiling():
    named = [*model_styles([*MODELS]).values()]
    assert all(len({style[kind] for style in named}) == len(MODELS) for kind in ("color", "marker"))
    for name in ("ensemble", "token", "gnn"):
        alone, look = model_styles([name])[name], []
        for ax in (scores_with_intervals([("x", "mine", 0.4, 0.3, 0.5), ("x", name, 0.5, 0.4, 0.6)], {"x": 0.9}),
                   per_graph_scores({"mine": {"g": 0.4}, "ridge": {"g": 0.3}, name: {"g": 0.5}})):
            look += [{"color": line.get_color(), "marker": line.get_marker()} for line in [lines(ax, name)]]
            assert lines(ax, "mine").get_color() not in ("#000000", alone["color"])
        curve = lines(learning_curve({"mine": [history([0.1])], name: [history([0.2])]}), f"{name} (1 seed)")
        assert look == [alone, alone] and curve.get_color() == alone["color"]
    assert model_styles(["token model", "GNN"])["GNN"] == model_styles(["gnn"])["gnn"]
    assert model_styles(["layout:nlp:random"])["layout:nlp:random"] == collection_style("layout:nlp:random")


def test_each_pair_of_kinds_has_its_number_in_the_square_of_its_collection():
    alone = ["a"], np.ones((1, 1))
    axes = rank_agreement({"x": (["a", "b"], np.array([[NAN, 0.5], [0.5, 1.0]])), "of one kind": alone,
                           "y": (["b", "c"], np.array([[0.2, -0.1], [-0.1, NAN]]))}, "a title")
    assert [ax.get_title(loc="left") for ax in axes] == ["x", "y"]
    assert {(*text.get_position(), text.get_text()) for text in axes[0].texts} == {
        (1, 0, "0.50"), (0, 1, "0.50"), (1, 1, "1.00")}
    for ax, names in zip(axes, (["a", "b"], ["b", "c"])):
        assert [text.get_text() for text in ax.get_xticklabels()] == names
        assert [text.get_text() for text in ax.get_yticklabels()] == names
    assert rank_agreement({}) == []


def test_each_set_of_collections_that_is_learned_from_has_a_picture_with_its_models():
    axes = learning_curves({"x + y": {"token": [history([0.1, 0.2, 0.3])] * 2, "gnn": [history([0.3, 0.3, 0.3])]},
                            "x": {"gnn": [history([0.2, 0.1, 0.4])]}}, "a title")
    assert [ax.get_title(loc="left") for ax in axes] == ["x + y", "x"]
    np.testing.assert_allclose(lines(axes[0], "token (2 seeds)").get_ydata(), [0.1, 0.2, 0.3])
    assert [*lines(axes[1])] == ["gnn (1 seed)"]
    axes[0].figure.draw_without_rendering()
    assert [text.get_text() for text in axes[0].figure.legends[0].get_texts()] == ["token", "gnn"]
    assert learning_curves({}) == []


def test_the_marks_of_a_graph_do_not_hide_each_other():
    ax = per_graph_scores({name: {"layout:xla:random:g": 0.5, "layout:xla:random:h": 0.4} for name in "abc"})
    places = sorted(y for name in "abc" for y in lines(ax, name).get_ydata())
    assert np.diff(places).min() > 0.2 and places[2] < 0.5 < places[3]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["h", "g"]


def test_a_drawn_graph_shows_all_nodes_edges_and_group_numbers():
    ax = draw_drawn(range(6))
    assert ax.get_xlabel().endswith("; 6 nodes, 5 edges")
    assert len(lines(ax, "not configurable").get_xdata()) == 3
    assert [len(c.get_offsets()) for c in ax.collections if not isinstance(c, LineCollection)] == [2, 1]
    assert [text.get_text() for text in ax.texts] == ["0", "0", "1"]
    edges, = (c for c in ax.collections if isinstance(c, LineCollection))
    assert len(edges.get_segments()) == 5
    assert all(use[0] > made[0] for use, made in edges.get_segments())       # data flows to the right
    assert draw_drawn(range(6), most=4).get_xlabel().endswith("; 4 nodes, 3 edges")


@pytest.mark.parametrize("name", [r"$\frac{a}{b$"])
def test_a_name_of_a_file_is_shown_letter_by_letter(name):
    """And not as a formula, which matplotlib may be unable to read."""
    drawn = [per_graph_scores({name: {name: 0.5}}, title=name),
             runtime_spread([described(name, [1, 2, 3])], title=name),
             learning_curve({name: [history([0.1])]}, title=name),
             scores_with_intervals([(name, name, 0.5, 0.4, 0.6)], title=name),
             graph_scatter({name: [(1, 2)]}, name, name, title=name), draw_drawn([0, 1, 2], title=name),
             collection_lines({(name, ""): ([1, 2], [1, 2])}, name, name, title=name)]
    for ax in drawn:
        ax.figure.canvas.draw()
        ours = [text for text in ax.figure.findobj(Text) if "$" in text.get_text() and "mathdefault" not in
                text.get_text()]
        assert not any(is_math_text(text.get_text()) for text in ours)
        assert {text.get_text().replace(r"\$", "$").partition(" (")[0] for text in ours} == {name}


def test_a_perfect_prediction_lies_on_the_diagonal():
    runtime = np.array([30, 10, 20])
    _, dots = predicted_against_measured(runtime * 2.0, runtime, title="x").lines
    assert dots.get_xdata().tolist() == dots.get_ydata().tolist() == [3, 1, 2]
    _, dots = predicted_against_measured(np.array([1.0, 2.0, 3.0]), runtime).lines
    assert dots.get_xdata().tolist() == [1, 2, 3] and dots.get_ydata().tolist() == [3, 1, 2]
