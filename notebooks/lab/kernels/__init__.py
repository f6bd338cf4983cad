"""Real kernels on one's own CPU or GPU, compiled and timed through TVM."""
from lab.kernels.carried import known_cost
from lab.kernels.definitions import KERNELS
from lab.kernels.libraries import called_libraries, library_groups, matmul_ratios, peak_shares
from lab.kernels.measure import INSTALL, has_tvm
from lab.kernels.network_pictures import (
    draw_layers,
    draw_networks,
    draw_progress,
    draw_time_shares,
    draw_winning_choices,
)
from lab.kernels.network_results import (
    compare_networks,
    compare_searches,
    compare_seeds,
    complete_races,
    every_form,
    layer_ratios,
    measurements_saved,
    network_sums,
    newest_forms,
    read_races,
    readable_ratios,
    search_progress,
    search_seconds,
    stacked,
    time_shares,
    winners_luck,
    winning_choices,
)
from lab.kernels.networks import multiplications, network_layers, network_names
from lab.kernels.results import draw_curves, draw_study, network_summary, study_summary, study_table, unsteady
from lab.kernels.schedules import schedule_choices, schedule_kernel, schedule_space
from lab.kernels.study import learn_and_search, study_kernels

__all__ = [
    "INSTALL", "KERNELS", "called_libraries", "compare_networks", "compare_searches", "compare_seeds",
    "complete_races", "draw_curves", "draw_layers", "draw_networks", "draw_progress", "draw_study",
    "draw_time_shares", "draw_winning_choices", "every_form", "has_tvm", "known_cost", "layer_ratios",
    "learn_and_search", "library_groups", "matmul_ratios", "measurements_saved", "multiplications",
    "network_layers", "network_names", "network_summary", "network_sums", "newest_forms", "peak_shares",
    "read_races", "readable_ratios", "schedule_choices", "schedule_kernel", "schedule_space", "search_progress",
    "search_seconds", "stacked", "study_kernels", "study_summary", "study_table", "time_shares", "unsteady",
    "winners_luck", "winning_choices",
]
