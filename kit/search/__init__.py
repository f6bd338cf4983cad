"""Find a fast configuration with few measurements: strategies, Droplet Search, budgets, gradient walks, studies."""
from kit.search.gradient import gradient_search, on_codes, relaxed_token_cost
from kit.search.oracle import default_codes, search_space
from kit.search.strategies import (
    annealing,
    droplet,
    explore_then_droplet,
    genetic,
    guided,
    optuna_search,
    random_search,
)
from kit.search.study import WITH_MODEL, WITHOUT_MODEL, best_known, open_space, study_rows, study_searches

__all__ = [
    "WITHOUT_MODEL", "WITH_MODEL", "annealing", "best_known", "default_codes", "droplet", "explore_then_droplet",
    "genetic", "gradient_search", "guided", "on_codes", "open_space", "optuna_search", "random_search",
    "relaxed_token_cost", "search_space", "study_rows", "study_searches",
]
