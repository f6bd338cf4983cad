"""What a model has to beat: frequency of codes, ridge regression; relatives of a program, and models of them alone."""
from kit.baselines.folds import families, fold_numbers
from kit.baselines.frequency import frequency
from kit.baselines.relatives import align_groups, groups_of, nearest_relatives, structural_relatives
from kit.baselines.ridge import CONFIGURABLE, fit_digit_ridge
from kit.baselines.specialists import rank_by_relatives

__all__ = [
    "CONFIGURABLE", "align_groups", "families", "fit_digit_ridge", "fold_numbers", "frequency", "groups_of",
    "nearest_relatives", "rank_by_relatives", "structural_relatives",
]
