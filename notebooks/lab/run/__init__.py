"""What a run needs besides the models: what the notebooks share, the ledger, the report."""
from lab.run.ledger import graph_scores, list_runs, record_leaderboard, record_run
from lab.run.provenance import (
    MARK,
    from_code,
    from_data,
    from_files,
    from_outside,
    from_settings,
    make_room,
    module_digest,
    own_results,
    read_mark,
    set_aside,
    unfit,
    write_mark,
)
from lab.run.report import read_record, read_scores, write_report
from lab.run.results import Results, made_otherwise
from lab.run.scoring import lead_row, mean_ceiling, score_row, scores_of
from lab.run.season import read_season
from lab.run.sessions import UNFINISHED, note_unfinished, steps_trained, unfinished
from lab.run.workflow import (
    UNQUOTED,
    checkpoint_path,
    left_out,
    load_costs,
    locate_data,
    note_settings,
    noted_settings,
    open_data,
    read_split,
    read_weights,
    report_problems,
    run_folder,
    runtimes_of,
    sample_truth,
    save_costs,
    teaching_graphs,
    training_graphs,
    wanted,
    write_table,
)

__all__ = [
    "MARK", "Results", "UNFINISHED", "UNQUOTED", "checkpoint_path", "from_code", "from_data", "from_files",
    "from_outside", "from_settings", "graph_scores", "lead_row", "left_out", "list_runs", "load_costs", "locate_data",
    "made_otherwise", "make_room", "mean_ceiling", "module_digest", "note_settings", "note_unfinished",
    "noted_settings", "open_data", "own_results", "read_mark", "read_record", "read_scores", "read_season",
    "read_split", "read_weights", "record_leaderboard", "record_run", "report_problems", "run_folder", "runtimes_of",
    "sample_truth", "save_costs", "score_row", "scores_of", "set_aside", "steps_trained", "teaching_graphs",
    "training_graphs", "unfinished", "unfit", "wanted", "write_mark", "write_report", "write_table",
]
