"""From a JAX function to a faster one: layouts are searched by true measurements, and the gain is measured again.

A noisy clock makes the luckiest of many configurations look fast. So the winner of the search runs again beside the
default, in new processes. It counts as faster only if the interval of this ratio lies above 1.
"""
from typing import NamedTuple

import numpy as np
from scipy import stats

from kit.checks import check_callable, check_whole
from kit.programs.layouts import JaxProgram, configured, program_from_jax, save_layouts
from kit.programs.own import layout_words
from kit.programs.timing import Bench
from kit.search import explore_then_droplet

PROCESSES, ROUNDS = 4, 5         # new ones in which the winner runs again, and rounds of default and winner in each
WEIGHED = 6                      # groups of the winner that are put back one at a time, to see what they gain


class Tuned(NamedTuple):
    """What `tune` found."""
    function: object             # the faster function; the one without layouts set if none is surely faster
    program: JaxProgram
    code: np.ndarray             # (g,) its configuration; 0 is the compiler's choice
    speedup: float               # time of the default / time of the winner, measured again
    interval: tuple              # of the speed-up, 95%
    trials: list                 # {"layouts": words, "relative": time / the default's, "fault": ""}, in order
    matters: dict                # {layouts of a group: time without them / time with them}, largest first

    def save(self, path):
        """Save the configuration as a file that `with_layouts` takes."""
        save_layouts(path, self.program, self.code)


def tune(function, *args, budget=30, tie="shapes", model=None, bench=None, seed=0):
    """Search layouts of a JAX function that make it faster on this machine.

    The search is `explore_then_droplet`. It measures the default and its neighbours first, because most changes cost
    something.

    Parameters
    ----------
    function, *args
        As in `program_from_jax`; with values, because the program runs.
    budget : int
        Measurements of the search. More follow to confirm the winner.
    tie : bool or str
        Which nodes form a group, as in `program_from_jax`.
    model : callable, optional
        Costs (k,) of configurations (k, g), to guide the search. None: the number of groups that differ from the
        default.
    bench : BenchSettings, optional
        Device, threads and limits.
    seed : int
        Of the search.

    Returns
    -------
    Tuned

    Raises
    ------
    BenchError
        If the function fails without layouts set.
    DataError
        As `program_from_jax`.
    ValueError
        If the budget or the seed is no whole number, the model no function, or `tie` has another value.
    """
    check_whole(locals(), budget=1, seed=0)
    if model is not None:
        check_callable(locals(), "model")
    program, trials = program_from_jax(function, *args, tie=tie), []
    with Bench(program, args, bench) as place:
        def objective(points):
            found = []
            for code in points:
                ratio, fault = relative(place, code)
                trials.append({"layouts": changes(program, code), "relative": ratio, "fault": fault})
                found.append(ratio)
            return np.array(found)
        found = explore_then_droplet(objective, program.dims, budget, np.random.default_rng(seed), confirm=2,
                                     model=model or deviations)
        code = found.best
        speedup, interval = confirmed(place, code) if code.any() else (1.0, (1.0, 1.0))
        surely = interval[0] > 1
        matters = weighed(place, code) if surely else {}
    code = code if surely else 0 * code
    return Tuned(configured(program, code), program, code, speedup, interval, trials, matters)


def deviations(codes):
    """The number of groups of each configuration (k, g) that differ from the default -> (k,)."""
    return (np.asarray(codes) != 0).sum(axis=1).astype(float)


def changes(program, code):
    """What a configuration sets, in words; the groups that it leaves to the compiler are not named."""
    words = [f"group {group}: {word}" for group, word in enumerate(layout_words(program, code)) if word != "nothing"]
    return "; ".join(words) or "nothing"


def relative(place, code):
    """(time / the default's, why it failed): the default runs before and after."""
    if fault := place.compile(code):
        return np.inf, fault
    before, answer = place.time_default(), place.time(code)
    if "fault" in answer:
        return np.inf, answer["fault"]
    return answer["ns"] / np.sqrt(before * place.time_default()), ""


def confirmed(place, code):
    """(speed-up, its 95% interval) of a configuration over the default, in rounds of both in new processes."""
    logs = []
    for _ in range(PROCESSES):
        place.restart()
        ratios = [relative(place, code)[0] for _ in range(ROUNDS)]
        logs.append(-np.median(np.log(ratios)))
    return speedup_of(logs) if np.isfinite(logs).all() else (0.0, (0.0, 0.0))           # it failed this time


def speedup_of(logs):
    """(speed-up, its 95% interval) from its logarithms in new processes, (p,)."""
    mean, half = np.mean(logs), stats.t.ppf(0.975, len(logs) - 1) * np.std(logs, ddof=1) / len(logs) ** 0.5
    return float(np.exp(mean)), (float(np.exp(mean - half)), float(np.exp(mean + half)))


def weighed(place, code):
    """{what a group's layouts are: time with the compiler's choice there / time of the configuration}."""
    found = {}
    for group in np.flatnonzero(code)[:WEIGHED]:
        without = code.copy()
        without[group] = 0
        alone = np.where(np.arange(len(code)) == group, code, 0)
        ratios = [relative(place, without)[0] / relative(place, code)[0] for _ in range(ROUNDS)]
        found[changes(place.program, alone)] = float(np.median(ratios))
    return dict(sorted(found.items(), key=lambda both: -both[1]))
