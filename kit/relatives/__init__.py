"""Relatives, the same network with other sizes: found, kept in one fold, and models of them alone."""
from kit.relatives.folds import families, fold_numbers
from kit.relatives.nearest import align_groups, groups_of, nearest_relatives, structural_relatives
from kit.relatives.specialists import rank_by_relatives

__all__ = [
    "align_groups", "families", "fold_numbers", "groups_of", "nearest_relatives", "rank_by_relatives",
    "structural_relatives",
]
