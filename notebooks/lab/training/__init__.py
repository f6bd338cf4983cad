"""Train the models of recipes, several at the same time; what was trained before is read.

Read in this order: `plan` says which model learns from what, `members` trains and ranks, `relatives` corrects.
"""
from typing import TYPE_CHECKING

from kit.lazy import lazy_names

if TYPE_CHECKING:                        # for editors, and for digests of code
    from lab.training.members import load_model, rank_unseen, train_or_read, train_recipes, training_name
    from lab.training.plan import Member, choose_recipes, in_folds, plan_members
    from lab.training.relatives import correct_by_relatives

__getattr__, __all__ = lazy_names(__name__, {
    "members": "load_model rank_unseen train_or_read train_recipes training_name",
    "plan": "Member choose_recipes in_folds plan_members",
    "relatives": "correct_by_relatives"})
