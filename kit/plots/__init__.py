"""Pictures: of scores, of the data, of searches. One function per picture, on `ax` if one is given."""
from kit.plots.data import group_options, opcode_shares, program_graph, runtime_spread
from kit.plots.scores import (
    MARKS,
    PALETTE,
    QUIET,
    collection_lines,
    dress,
    ensemble_gain,
    graph_scatter,
    learning_curve,
    new_axes,
    per_graph_scores,
    scores_with_intervals,
    spaced,
)
from kit.plots.search import regret_curves

__all__ = [
    "MARKS", "PALETTE", "QUIET", "collection_lines", "dress", "ensemble_gain", "graph_scatter", "group_options",
    "learning_curve", "new_axes", "opcode_shares", "per_graph_scores", "program_graph", "regret_curves",
    "runtime_spread", "scores_with_intervals", "spaced",
]
