"""Relatives, the same network with other sizes: found, kept in one fold, and models of them alone."""
from typing import TYPE_CHECKING

from kit.lazy import lazy_names

if TYPE_CHECKING:                        # for editors, and for digests of code
    from kit.relatives.folds import families, fold_numbers
    from kit.relatives.nearest import align_groups, groups_of, nearest_relatives, structural_relatives
    from kit.relatives.specialists import rank_by_relatives

__getattr__, __all__ = lazy_names(__name__, {
    "folds": "families fold_numbers",
    "nearest": "align_groups groups_of nearest_relatives structural_relatives",
    "specialists": "rank_by_relatives"})
