"""Real kernels on one's own CPU, compiled and timed through TVM."""
from kit.kernels.definitions import KERNELS, schedule_choices, schedule_space
from kit.kernels.lab import INSTALL, has_tvm
from kit.kernels.study import draw_curves, draw_study, learn_and_search, study_kernel, study_summary, study_table

__all__ = [
    "INSTALL", "KERNELS", "draw_curves", "draw_study", "has_tvm", "learn_and_search", "schedule_choices",
    "schedule_space", "study_kernel", "study_summary", "study_table",
]
