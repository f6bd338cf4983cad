"""The data of a notebook or a run: where they are, the graphs in them, and which runtimes may be looked at."""
from lab.data.graphs import MOST_CONFIGS, UNQUOTED, Data, read_split, teaching_graphs
from lab.data.source import (
    MEASURED,
    copy_table,
    data_digest,
    is_measured,
    left_out,
    locate_data,
    measured_table,
    open_data,
    report_problems,
    source_of,
    wanted,
)

__all__ = [
    "MEASURED", "MOST_CONFIGS", "UNQUOTED", "Data", "copy_table", "data_digest", "is_measured", "left_out",
    "locate_data", "measured_table", "open_data", "read_split", "report_problems", "source_of", "teaching_graphs",
    "wanted",
]
