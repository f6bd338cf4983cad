"""The searches for fast schedules that are compared: their names in tables, and their settings."""
from kit.search import explore_then_droplet, random_search
from lab.kernels.measure import GPU
from lab.kernels.schedules import schedule_space

OURS, RANDOM, RIVAL = "explore then droplet", "random", "MetaSchedule"
CARRIED = f"{OURS}, carried over"            # with a cost model that learned from layers of other networks
STEADY = {"confirm": 3, "stamina": 64}       # for times with noise, and for spaces with several good regions
# finished searches are known by these names: a search with other settings needs another name
SETTINGS = {OURS: STEADY, CARRIED: {"doubt_model": True, **STEADY}}             # of `explore_then_droplet`


def check_target(strategies, target):
    """ValueError if one of the strategies searches our space of schedules, and the target is a GPU."""
    ours = [strategy for strategy in strategies if strategy in (RANDOM, *SETTINGS)]
    if target == GPU and ours:
        raise ValueError(f"the target is {GPU}, and the space of schedules of {'; '.join(ours)} is for CPUs; on a GPU, "
                         f"choose searches of {RIVAL}'s space")


def confirmations(strategy):
    """How often a search measures its best schedule, at most."""
    return SETTINGS.get(strategy, {}).get("confirm", 1)


def kernel_search(strategy, kernel, model=None):
    """(search, its settings) of kit.search, for RANDOM or one of SETTINGS in the space of `schedule_space`."""
    if strategy == RANDOM:
        return random_search, {}
    ordered = [choice.ordered for choice in schedule_space(kernel)]
    return explore_then_droplet, {"ordered": ordered, "model": model, **SETTINGS[strategy]}
