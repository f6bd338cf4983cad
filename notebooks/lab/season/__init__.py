"""What is known of all runs: the ledger, the history of a season, and the report of a run."""
from lab.season.history import read_season
from lab.season.ledger import graph_scores, list_runs, record_leaderboard, record_run
from lab.season.report import read_record, read_scores, write_report

__all__ = [
    "graph_scores", "list_runs", "read_record", "read_scores", "read_season", "record_leaderboard", "record_run",
    "write_report",
]
