"""Train the models of recipes, several at the same time; what was trained before is read.

Read in this order: `plan` says which model learns from what, `members` trains and ranks, `relatives` corrects.
"""
from lab.training.members import load_model, rank_unseen, train_or_read, train_recipes, training_name
from lab.training.plan import Member, choose_recipes, in_folds, plan_members
from lab.training.relatives import correct_by_relatives

__all__ = [
    "Member", "choose_recipes", "correct_by_relatives", "in_folds", "load_model", "plan_members", "rank_unseen",
    "train_or_read", "train_recipes", "training_name",
]
