"""What a model has to beat: popularity, ridge regression, boosted trees, the published networks; and how to compare."""
from kit.baselines.compare import differences, rank_unseen, unseen_programs
from kit.baselines.popularity import popularity
from kit.baselines.published import EarlyJoinSAGE, LateJoinSAGE, LayoutGCN, LayoutSAGE, ResidualGCN, TileMLP
from kit.baselines.ridge import fit_digit_ridge
from kit.baselines.trees import fit_agreement_trees

__all__ = [
    "EarlyJoinSAGE", "LateJoinSAGE", "LayoutGCN", "LayoutSAGE", "ResidualGCN", "TileMLP", "differences",
    "fit_agreement_trees", "fit_digit_ridge", "popularity", "rank_unseen", "unseen_programs",
]
