"""Find a fast configuration with few measurements: strategies, Droplet Search, budgets, gradient walks, studies."""
from kit.search.budgets import lowest_confirmed
from kit.search.droplet_search import droplet, explore_then_droplet
from kit.search.gaussian_process import MOST_REMEMBERED
from kit.search.gradient import gradient_search, on_codes, relaxed_token_cost
from kit.search.rows import search_rows
from kit.search.spaces import best_known, default_codes, open_space, search_space
from kit.search.strategies import annealing, genetic, guided, optuna_search, random_search
from kit.search.study import WITH_MODEL, WITHOUT_MODEL, fingerprint, study_reasons, study_rows, study_searches
from kit.search.tables import (
    file_rows,
    reason_rows,
    rival_rows,
    row_speed_ups,
    slowdown_rows,
    space_speed_ups,
    speed_up_rows,
    tile_rows,
    tile_speed_ups,
)

__all__ = [
    "MOST_REMEMBERED", "WITHOUT_MODEL", "WITH_MODEL", "annealing", "best_known", "default_codes", "droplet",
    "explore_then_droplet", "file_rows", "fingerprint", "genetic", "gradient_search", "guided", "lowest_confirmed",
    "on_codes", "open_space", "optuna_search", "random_search", "reason_rows", "relaxed_token_cost", "rival_rows",
    "row_speed_ups", "search_rows", "search_space", "slowdown_rows", "space_speed_ups", "speed_up_rows",
    "study_reasons", "study_rows", "study_searches", "tile_rows", "tile_speed_ups",
]
