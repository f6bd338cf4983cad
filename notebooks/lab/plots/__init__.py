"""Pictures of scores, of the data, of searches: one function per picture, on `ax` if one is given."""
from typing import TYPE_CHECKING

from kit.lazy import lazy_names

if TYPE_CHECKING:                        # for editors, and for digests of code
    from lab.plots.programs import (
        collection_lines,
        graph_scatter,
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

__getattr__, __all__ = lazy_names(__name__, {
    "programs": "collection_lines graph_scatter opcode_shares predicted_against_measured "
            "program_graph runtime_spread table_of_terms two_layouts",
    "scores": "leads_with_intervals learning_curve learning_curves per_graph_scores rank_agreement "
              "scores_with_intervals validation_against_leaderboard",
    "search": "speed_up_by_search speed_up_curves",
    "style": "MARKS PALETTE QUIET dress name_rows new_axes row_marks spaced"})
