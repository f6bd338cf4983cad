"""What a run needs besides the models: the data, the store of results, the folder of a run, the ledger, the report."""
from lab.run.code import module_digest
from lab.run.data import (
    UNQUOTED,
    is_measured,
    known_truth,
    left_out,
    locate_data,
    measured_table,
    open_data,
    read_split,
    report_problems,
    runtimes_of,
    source_of,
    teaching_graphs,
    training_graphs,
    wanted,
)
from lab.run.folder import Folder, Prediction, Run, run_folder, step_of
from lab.run.gather import gather_predictions, load_costs, read_weights
from lab.run.ledger import graph_scores, list_runs, record_leaderboard, record_run
from lab.run.report import read_record, read_scores, write_report
from lab.run.scoring import SCORE_COLUMNS, lead_row, mean_ceiling, score_row, scores_of
from lab.run.season import read_season
from lab.run.store import Store, copy_whole, read_kept
from lab.run.unfinished import UNFINISHED, note_unfinished, steps_trained, unfinished

__all__ = [
    "Folder", "Prediction", "Run", "SCORE_COLUMNS", "Store", "UNFINISHED", "UNQUOTED", "copy_whole",
    "gather_predictions", "graph_scores", "is_measured", "known_truth", "lead_row", "left_out", "list_runs",
    "load_costs", "locate_data", "mean_ceiling", "measured_table", "module_digest", "note_unfinished", "open_data",
    "read_kept", "read_record", "read_scores", "read_season", "read_split", "read_weights", "record_leaderboard",
    "record_run", "report_problems", "run_folder", "runtimes_of", "score_row", "scores_of", "source_of", "step_of",
    "steps_trained", "teaching_graphs", "training_graphs", "unfinished", "wanted", "write_report",
]
