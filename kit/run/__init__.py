"""What a run needs besides the models: what the notebooks share, the ledger, the report."""
from kit.run.ledger import list_runs, record_leaderboard, record_run
from kit.run.report import read_record, read_scores, write_report
from kit.run.workflow import (
    UNQUOTED,
    checkpoint_path,
    left_out,
    load_costs,
    note_settings,
    noted_settings,
    open_data,
    read_split,
    report_problems,
    run_folder,
    sample_truth,
    save_costs,
    training_graphs,
    wanted,
    write_table,
)

__all__ = [
    "UNQUOTED", "checkpoint_path", "left_out", "list_runs", "load_costs", "note_settings", "noted_settings",
    "open_data", "read_record", "read_scores", "read_split", "record_leaderboard", "record_run", "report_problems",
    "run_folder", "sample_truth", "save_costs", "training_graphs", "wanted", "write_report", "write_table",
]
