"""Say what would be pushed to Kaggle, and how many hours and sessions it would train, without pushing anything."""
import math

from kit.data import COLLECTIONS
from kit.kaggle import GPUS, quota_line

TRAINS = {"03": "tile:", "04": "layout:"}        # notebooks that train, and which collections
SESSION = 9.0                                    # hours; the shortest time after which Kaggle ended a session


def show_plan(plan):
    """Print the machine, data, models, hours and sessions of each notebook of a plan, and the GPU quota with a token.

    `plan`: [(content of kernel-metadata.json, {path of a notebook in it: {name: value}})].
    """
    hours, sessions = [], []
    for about, parameters in plan:
        machine = about.get("machine_shape")
        gpus = " ({1} x {0})".format(*GPUS[machine]) if machine in GPUS else ""
        sources = [f"competition {name}" for name in about["competition_sources"]]
        sources += [f"Dataset {name}" for name in about["dataset_sources"]]
        print(f"{about['id']}\n    machine: {machine or 'without a GPU'}{gpus}, private, no internet\n"
              f"    data: {', '.join(sources)}")
        for path, given in parameters.items():
            for collection in trained_in(path, given):
                print(f"    {collection}: {models_of(collection, given)}")
        hours.append(hours_of(parameters, machine))
        sessions.append(sessions_of(parameters, hours[-1]))
        too_long = hours[-1] is not None and min(hours[-1], budget_of(parameters)) > SESSION
        print(f"    training: {in_words(hours[-1])}{in_sessions(sessions[-1], budget_of(parameters))}"
              f"{'; Kaggle ends a session after 9 to 12 hours' * too_long}")
    total, count = None if None in hours else sum(hours), None if None in sessions else sum(sessions)
    print(f"together: {in_words(total)}{in_sessions(count)} (calculated for training alone, not measured; see "
          "notebooks/recipes.md)")
    if any(about["enable_gpu"] for about, _ in plan):
        print(quota_line(total))


def trained_in(path, parameters):
    """The collections that a notebook trains for."""
    kind = TRAINS.get(path.stem[:2])
    return [c for c in parameters.get("collections") or COLLECTIONS if kind and c.startswith(kind)]


def models_of(collection, parameters):
    """The models and seeds for a collection, as text."""
    from hours import planned_models  # loads PyTorch
    names = [one.name for one in planned_models(collection, parameters)]
    folds = parameters.get("folds") or 1
    first, seeds = parameters.get("first_seed", 0), max(map(names.count, names)) // folds
    return ", ".join(dict.fromkeys(names)) + (f", seeds {first} to {first + seeds - 1}" if seeds > 1 else
                                              f", seed {first}") + f", {folds} folds" * (folds > 1)


def hours_of(parameters, machine):
    """Hours that notebooks train on a machine, one after another; None where that is not known."""
    from hours import training_hours
    if machine not in GPUS:
        return None
    hours = [training_hours(trained_in(path, given), given, *GPUS[machine])
             for path, given in parameters.items()]
    return None if None in hours else sum(hours)


def budget_of(parameters):
    """Hours after which training in a session stops: the smallest `hours` of its notebooks, or Kaggle's."""
    from kit.train_parts import KAGGLE_HOURS  # loads PyTorch
    return min((given["hours"] for given in parameters.values() if given.get("hours") is not None),
               default=KAGGLE_HOURS)


def sessions_of(parameters, hours):
    """How many sessions one after another a notebook of these hours needs at least; None where that is not known."""
    budget = budget_of(parameters)
    if hours is None or budget <= 0:
        return None
    return max(1, math.ceil(hours / budget))


def in_sessions(count, budget=None):
    """A number of sessions, with the hours of each, as text; nothing where the number is not known."""
    if count is None:
        return ""
    each = f" of {budget:g} hours" if budget and count > 1 else ""
    return f", {'at least ' * (count > 1)}{count} session{'s' * (count > 1)}{each}"


def in_words(hours):
    """Hours as text."""
    if hours is None:
        return "no estimate for this machine or model"
    return f"about {hours:.1f} hours" if hours >= 0.05 else "less than 0.1 hours"
