"""Real kernels on one's own CPU, compiled and timed through TVM."""
from lab.kernels.bench import INSTALL, PYTORCH, KernelLab, has_tvm
from lab.kernels.carried import known_cost
from lab.kernels.definitions import KERNELS, Kernel
from lab.kernels.networks import multiplications, network_layers, network_names
from lab.kernels.pictures import draw_layers, draw_networks, draw_progress
from lab.kernels.results import (
    NEWEST,
    compare_newest,
    complete_races,
    network_summary,
    newest_against,
    race_table,
    read_races,
    readable_ratios,
    search_progress,
    unsteady,
)
from lab.kernels.schedules import schedule_choices, schedule_kernel, schedule_space
from lab.kernels.searches import CARRIED, RANDOM, RIVAL, SearchJob, measure_layers

__all__ = [
    "CARRIED", "INSTALL", "KERNELS", "NEWEST", "PYTORCH", "RANDOM", "RIVAL", "Kernel", "KernelLab", "SearchJob",
    "compare_newest", "complete_races", "draw_layers", "draw_networks", "draw_progress", "has_tvm", "known_cost",
    "measure_layers", "multiplications", "network_layers", "network_names", "network_summary", "newest_against",
    "race_table", "read_races", "readable_ratios", "schedule_choices", "schedule_kernel", "schedule_space",
    "search_progress", "unsteady",
]
