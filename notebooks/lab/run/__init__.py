"""What a run needs besides data and models: the store of results, the folder of a run, the ledger, the report."""
from lab.run.code import module_digest
from lab.run.folder import Folder, Prediction, Run, run_folder, step_of
from lab.run.gather import gather_predictions, load_costs, read_weights
from lab.run.ledger import graph_scores, list_runs, record_leaderboard, record_run
from lab.run.report import read_record, read_scores, write_report
from lab.run.scoring import SCORE_COLUMNS, lead_row, mean_ceiling, score_row, scores_of
from lab.run.season import read_season
from lab.run.store import Store, read_kept
from lab.run.unfinished import UNFINISHED, note_unfinished, steps_trained, unfinished

__all__ = [
    "Folder", "Prediction", "Run", "SCORE_COLUMNS", "Store", "UNFINISHED", "gather_predictions",
    "graph_scores", "lead_row", "list_runs", "load_costs", "mean_ceiling", "module_digest", "note_unfinished",
    "read_kept", "read_record", "read_scores", "read_season", "read_weights", "record_leaderboard", "record_run",
    "run_folder", "score_row", "scores_of", "step_of", "steps_trained", "unfinished", "write_report",
]
