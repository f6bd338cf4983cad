"""The data of a notebook or a run: where they are, the graphs in them, and which runtimes may be looked at."""
from lab.data.graphs import MOST_CONFIGS, UNQUOTED, Data, read_split, tau_ceiling, teaching_graphs
from lab.data.source import (
    MEASURED,
    copy_table,
    data_digest,
    families_of,
    is_measured,
    left_out,
    locate_data,
    measured_table,
    open_data,
    report_problems,
    source_of,
    wanted,
)
from lab.data.truth import default_codes, deviations, distinct_tau, each_once, equal_distance_tau, speed_up

__all__ = [
    "MEASURED", "MOST_CONFIGS", "UNQUOTED", "Data", "copy_table", "data_digest", "default_codes", "deviations",
    "distinct_tau", "each_once", "equal_distance_tau", "families_of", "is_measured", "left_out", "locate_data",
    "measured_table", "open_data", "read_split", "report_problems", "source_of", "speed_up", "tau_ceiling",
    "teaching_graphs", "wanted",
]
