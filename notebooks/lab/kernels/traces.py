"""MetaSchedule's own space as codes: the sampling decisions of one of its traces, so that kit.search can change them.

A trace is MetaSchedule's list of scheduling steps; some of them hold a sampled decision. All of this needs TVM.
"""
from contextlib import suppress

import numpy as np

from kit.search import droplet
from lab.kernels.schedules import divisors

PATIENCE = 20                    # codes tried per measurement on a GPU: a block has limits that most codes exceed
DEEPEST = 8                      # loops that a block may be computed at, from outside; -1 is inline, -2 the root


class TraceSpace:
    """The decisions of a trace as coordinates: `dims`, `ordered`, and `start`, the codes of the trace itself."""
    # A tile is cut into factors: each but the outermost is a coordinate, whose values are the divisors of the extent.
    # Factors that do not fit are made smaller, from inside to outside, so every code is a cut.

    def __init__(self, trace, module, context):
        self.trace, self.module, self.context, self.parts = trace, module, context, []
        self.dims, self.ordered, self.start = [], [], []
        for step in trace.insts:
            if step in trace.decisions:
                self._add(step, trace.decisions[step])

    def _add(self, step, decision):
        """Add the coordinates of one sampling step."""
        kind = step.kind.name
        if kind == "SamplePerfectTile":
            factors = list(map(int, decision))
            extent, most = 1, int(step.attrs[1])
            for factor in factors:
                extent *= factor
            values = [divisors(extent)] * (len(factors) - 2) + [divisors(extent, high=max(most, factors[-1]))]
            starts = [options.index(factor) for options, factor in zip(values, factors[1:])]
        elif kind == "SampleCategorical":
            extent, values, starts = None, [tuple(range(len(step.attrs[0])))], [int(decision)]
        else:
            extent, values = None, [tuple(range(-2, max(DEEPEST, int(decision) + 1)))]
            starts = [int(decision) + 2]
        self.parts.append((step, extent, values))
        self.dims += [len(options) for options in values]
        self.ordered += [kind != "SampleCategorical"] * len(values)
        self.start += starts

    def decisions(self, codes):
        """[(step, decision)] of codes (g,)."""
        left, found = list(map(int, codes)), []
        for step, extent, values in self.parts:
            mine, left = left[:len(values)], left[len(values):]
            chosen = [options[code] for options, code in zip(values, mine)]
            found.append((step, _cut(extent, chosen) if extent else chosen[0]))
        return found

    def scheduled(self, codes):
        """The scheduled module of codes (g,), or None if MetaSchedule's rules reject it."""
        from tvm.s_tir import Schedule
        trace = self.trace
        for step, decision in self.decisions(codes):
            trace = trace.with_decision(step, decision, True)
        schedule = Schedule(self.module)
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            right = all(rule.apply(schedule) for rule in self.context.space_generator.postprocs)
        except Exception:                   # TVM raises errors of many types for a place where a block cannot go
            return None
        return schedule.mod if right else None


def _cut(extent, inner):
    """Factors of `extent`, the outermost first: the inner ones as wished, or the next smaller divisors.

    >>> _cut(24, [4, 5])
    [2, 3, 4]
    """
    factors = []
    for wish in reversed(inner):
        factors.insert(0, divisors(extent, high=wish)[-1])
        extent //= factors[0]
    return [extent, *factors]


def descend_traces(traces, module, context, measure, budget, rng, free_rejects=False):
    """Coordinate descent over the decisions of `traces`, one after the other, until `budget` measurements are made.

    `measure` takes modules as JSON and gives seconds. A descent measures its start again. A module is measured once.
    Codes that are rejected, or give a module that is known, count as measured, so there may be fewer measurements than
    `budget`; with `free_rejects`, up to PATIENCE of them for each measurement do not count.
    """
    import tvm
    known, spent = {}, 0

    def objective(points):
        modules = [space.scheduled(point) for point in points]
        jobs = [None if each is None else tvm.ir.save_json(each) for each in modules]
        new = [job for job in dict.fromkeys(jobs) if job is not None and job not in known]
        known.update(zip(new, measure(new[:budget - len(known)])))
        if len(known) >= budget:
            raise _BudgetSpent
        return np.array([known.get(job, np.inf) for job in jobs])
    tries = budget * (PATIENCE if free_rejects else 1)
    with suppress(_BudgetSpent):
        for trace in traces:
            if spent >= tries:
                break
            space = TraceSpace(trace, module, context)
            spent += droplet(objective, space.dims, tries - spent, rng, start=space.start, ordered=space.ordered,
                             batch=4).measurements


class _BudgetSpent(Exception):
    """All measurements are made."""
