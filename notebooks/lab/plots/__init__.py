"""Pictures of scores, of the data, of searches: one function per picture, on `ax` if one is given."""
from lab.plots.data import (
    collection_lines,
    graph_scatter,
    group_options,
    opcode_shares,
    predicted_against_measured,
    program_graph,
    runtime_spread,
    table_of_terms,
    two_layouts,
)
from lab.plots.scores import (
    leads_with_intervals,
    learning_curve,
    learning_curves,
    per_graph_scores,
    rank_agreement,
    scores_with_intervals,
    validation_against_leaderboard,
)
from lab.plots.search import speed_up_by_search, speed_up_curves
from lab.plots.style import MARKS, PALETTE, QUIET, dress, name_rows, new_axes, row_marks, spaced

__all__ = [
    "MARKS", "PALETTE", "QUIET", "collection_lines", "dress", "graph_scatter", "group_options", "leads_with_intervals",
    "learning_curve", "learning_curves", "name_rows", "new_axes", "opcode_shares", "per_graph_scores",
    "predicted_against_measured", "program_graph", "rank_agreement", "row_marks", "runtime_spread",
    "scores_with_intervals", "spaced", "speed_up_by_search", "speed_up_curves", "table_of_terms", "two_layouts",
    "validation_against_leaderboard",
]
