"""Find a fast configuration with few measurements: strategies, Droplet Search, budgets, gradient walks."""
from kit.search.budgets import lowest_confirmed
from kit.search.droplet_search import droplet, explore_then_droplet
from kit.search.gaussian_process import MOST_REMEMBERED
from kit.search.gradient import gradient_search, on_codes, relaxed_token_cost
from kit.search.rows import search_rows
from kit.search.strategies import annealing, genetic, guided, random_search

__all__ = [
    "MOST_REMEMBERED", "annealing", "droplet", "explore_then_droplet", "genetic", "gradient_search", "guided",
    "lowest_confirmed", "on_codes", "random_search", "relaxed_token_cost", "search_rows",
]
