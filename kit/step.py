"""One step of the optimiser: costs, loss, gradients summed over graphs and processes, new weights."""
import math

import torch

from kit.batch import costs_of, draw_step
from kit.losses import loss_across_graphs
from kit.processes import add_up, add_up_gradients

SWA_BEGINS = 0.75                # share of the steps; the paper averages over the last quarter, too


def train_step(model, tasks, loss, step, settings, team, optimizer, scaler, average):
    """One step of the optimiser -> its loss, None if float16 overflowed; configurations seen by all processes."""
    s, total = settings, torch.zeros((), dtype=torch.float64, device=team.device)
    for group in optimizer.param_groups:
        group["lr"] = float(s.learning_rate * schedule(step, s))
    model.train()
    optimizer.zero_grad()
    drawn = draw_step(tasks, step, s)
    runtimes = [d.task.runtime[d.index] for d in drawn]
    own = range(team.rank, s.graphs_per_step, team.size)
    for places in [own] if s.across_graphs else [[place] for place in own]:      # whose activations are held at once
        costs = {place: costs_of(model, drawn[place], s.precision) for place in places}
        if s.across_graphs:          # a process knows all costs, but follows the gradient through its own
            value = loss_across_graphs(all_costs(costs, drawn, team), runtimes, loss, s.across_graphs)
            total += value.detach() / team.size
        else:
            value = sum(loss(costs[place], runtimes[place]) for place in places) / s.graphs_per_step
            total += value.detach()
        if value.requires_grad:
            scaler.scale(value).backward()
    add_up_gradients(list(model.parameters()), team)
    scaler.unscale_(optimizer)
    norm, total = float(torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)), float(add_up(total, team))
    finite = math.isfinite(norm) and math.isfinite(total)
    if not finite and not scaler.is_enabled():
        raise FloatingPointError(f"the loss is {total} at step {step}, its gradient has norm {norm}; "
                                 "lower the learning rate")
    scaler.step(optimizer)           # not where the gradient overflowed; `update` then halves the scale
    scaler.update()
    if finite:
        average.update(step)
    elif scaler.get_scale() < 1:
        raise FloatingPointError(f"the loss is {total} at step {step}, its gradient has norm {norm}, and float16 "
                                 "overflows at every scale; pass precision='bfloat16' or 'float32'")
    return total if finite else None, sum(len(d.index) for d in drawn)


def all_costs(costs, drawn, team):
    """Costs of every place of a step: this process's own {place: (k,)} as they are, the others' as plain numbers."""
    sizes = [len(d.index) for d in drawn]
    flat = next(iter(costs.values())).new_zeros(sum(sizes))
    for place, piece in enumerate(flat.split(sizes)) if team.size > 1 else ():
        if place in costs:
            piece.copy_(costs[place].detach())
    return [costs.get(place, piece) for place, piece in enumerate(add_up(flat, team).split(sizes))]


def schedule(step, settings):
    """Share of the peak learning rate: linear warm-up, then a cosine to zero, which "swa" stops at its first step."""
    warm = max(1, round(settings.warmup * settings.steps))
    if settings.average == "swa":
        step = min(step, swa_first(settings))        # else the weights would hardly differ, and a mean be of no use
    if step < warm:
        return (step + 1) / warm
    # math, not NumPy: a checkpoint that holds a NumPy number cannot be read again without unpickling
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, settings.steps - warm)))


def swa_first(settings):
    """The step from which "swa" averages."""
    return round(SWA_BEGINS * settings.steps)


def grad_scaler(precision, device):
    """What keeps small gradients of float16 from vanishing; it does nothing in other precisions."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=precision == "float16")
    return torch.cuda.amp.GradScaler(enabled=precision == "float16")          # PyTorch before 2.3

