"""Find a fast configuration with few measurements: strategies, Droplet Search, budgets."""
from kit.search.budgets import lowest_confirmed
from kit.search.droplet_search import droplet, explore_then_droplet
from kit.search.file_rows import search_rows
from kit.search.strategies import annealing, genetic, guided, random_search
from kit.search.token_cost import on_codes, relaxed_token_cost

__all__ = ["annealing", "droplet", "explore_then_droplet", "genetic", "guided", "lowest_confirmed", "on_codes",
           "random_search", "relaxed_token_cost", "search_rows"]
