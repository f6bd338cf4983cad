"""What a model has to beat: popularity, ridge regression, trees, published networks; and models of relatives alone."""
from kit.baselines.compare import differences, rank_unseen, unseen_programs
from kit.baselines.folds import families, fold_numbers
from kit.baselines.popularity import popularity
from kit.baselines.published import EarlyJoinSAGE, LateJoinSAGE, LayoutGCN, LayoutSAGE, ResidualGCN, TileMLP
from kit.baselines.ridge import CONFIGURABLE, fit_digit_ridge
from kit.baselines.siblings import align_groups, groups_of, nearest_relatives, structural_relatives
from kit.baselines.specialists import rank_by_relatives
from kit.baselines.trees import fit_agreement_trees

__all__ = [
    "CONFIGURABLE", "EarlyJoinSAGE", "LateJoinSAGE", "LayoutGCN", "LayoutSAGE", "ResidualGCN", "TileMLP",
    "align_groups", "differences", "families", "fit_agreement_trees", "fit_digit_ridge", "fold_numbers", "groups_of",
    "nearest_relatives", "popularity", "rank_by_relatives", "rank_unseen", "structural_relatives", "unseen_programs",
]
