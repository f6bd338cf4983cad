"""One training loop for every model, device and number of processes.

All that a step draws comes from (seed, step, place), a place being one of the graphs of the step. So a run that was
killed and resumed ends with the same weights as one that was not, on a CPU to the last bit; and several processes,
which share out the places of each step, follow the same curve as one. Start them by torchrun, each calling `train`
alike, or by `kit.train.train_parallel`.
"""
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import re
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing

from kit.data import target, teaches
from kit.files import write_json
from kit.losses import loss_across_graphs, pairwise_hinge_loss
from kit.predict import PRECISIONS, predict
from kit.training import (
    WeightAverage,
    add_up,
    add_up_gradients,
    check_gpus,
    check_same,
    costs_of,
    draw_step,
    join_team,
    load_checkpoint,
    make_tasks,
    read_checkpoint,
    run_record,
    save_checkpoint,
)

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


CHECKPOINT_SECONDS = 60          # at most this much work is lost to a kill
CHOICES = (("keep", ("best", "last")), ("precision", PRECISIONS), ("average", ("none", "ema", "swa")),
           ("sampling", ("uniform", "spread")))


@dataclass(frozen=True)
class TrainSettings:
    """Defaults: the first place's optimiser; its runs had 46,000 to 207,000 steps."""
    steps: int = 1000
    configs_per_step: int = 64           # of one graph, at most; see memory_budget
    graphs_per_step: int = 1             # one after another, gradients added up: memory is that of one graph
    learning_rate: float = 1e-3          # the peak: linear warm-up, then a cosine to zero
    warmup: float = 0.05                 # share of the steps
    weight_decay: float = 1e-5
    clip: float = 1.0                    # norm of the gradient
    validate_every: int = 100            # steps
    keep: str = "best"                   # weights at the best validation score; "last": at the end
    seed: int = 0
    device: str = "cpu"                  # "cuda": with several processes a GPU each
    precision: str = "float32"           # of matrix products; "bfloat16", or "float16" with a scaled loss
    average: str = "none"                # weights to validate and keep: "ema", or "swa" over the last quarter
    ema_decay: float = 0.999             # a step's share in the next mean
    sampling: str = "uniform"            # of configurations; "spread": evenly over the ranks of distinct runtimes
    across_graphs: float = 0.0           # share of the loss over all configurations of a step, as if of one graph;
    #                                      above 0 all graphs of a step are held at once. The fifth place: 0.5
    memory_budget: int | None = None     # bytes that the forward pass of a step may keep for the backward pass

    def __post_init__(self):
        least = {"steps": 0, "configs_per_step": 2, "graphs_per_step": 1, "validate_every": 1, "seed": 0}
        least |= {} if self.memory_budget is None else {"memory_budget": 1}
        for name, low in least.items():          # a step ranks pairs, so it takes two configurations
            value = getattr(self, name)
            if not (isinstance(value, (int, np.integer)) and value >= low):
                raise ValueError(f"{name} is {value!r}; expected a whole number of at least {low}")
        for name in ("learning_rate", "clip"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected a number above 0")
        for name in ("warmup", "ema_decay", "across_graphs"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected a share, 0 to 1")
        for name, known in CHOICES:
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected {' or '.join(map(repr, known))}")


def train(model, graphs, settings=None, loss=pairwise_hinge_loss, valid=(), score=None, checkpoint=None, report=None,
          record=None):
    """Train a model to rank the configurations of each graph; keep the best weights seen on the validation graphs.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
        Trained in place. Its feature statistics are fitted on `graphs` if it has none yet.
    graphs : sequence of LayoutGraph or TileGraph
        Of one collection or several. Those without two different runtimes teach nothing and are left out.
    settings : TrainSettings, optional
    loss : callable
        (cost (k,), runtime (k,)) -> scalar Tensor.
    valid : sequence of LayoutGraph or TileGraph
        Those without two different runtimes and two different configurations are left out. Kept prepared on the
        device, as `graphs` are.
    score : callable, optional
        (cost (c,), runtime (c,)) -> float, higher is better; needed with `valid`.
    checkpoint : str or Path, optional
        Written at each validation and about once a minute between two steps; if it is there already, training
        goes on from it, in any number of processes.
    report : callable, optional
        Called with one line of text at each validation.
    record : str or Path, optional
        A JSON file to write the run record to.

    Returns
    -------
    dict
        "step", "loss" and "score" (mean over `valid`, NaN without), one value per validation; "best_step";
        "seconds" of training so far; "configs" seen so far; "overflows", steps that float16 lost; "record", see
        `run_record`.

    Raises
    ------
    ValueError
        If no graph has two different runtimes, `valid` comes without `score`, the checkpoint is damaged or
        belongs to other settings, there is no such device, the processes cannot share out the graphs of a step or
        were given different things, or two configurations of a graph pass the memory budget.
    FloatingPointError
        If the loss or its gradient is not finite.
    """
    s = settings or TrainSettings()
    usable, valid = ([g for g in some if teaches(g)] for some in (graphs, valid))
    if not usable:
        raise ValueError(f"none of the {len(graphs)} training graphs has two configurations with different runtimes")
    if valid and score is None:
        raise ValueError("validation graphs without a score; pass score=kendall_tau or tile_score")
    team = join_team(s.device)
    if s.graphs_per_step % team.size:
        raise ValueError(f"graphs_per_step is {s.graphs_per_step}, which {team.size} processes cannot share out "
                         f"evenly; pass a multiple of {team.size}")
    model.to(team.device)
    if not model.fitted:
        model.fit_scale(usable)
    tasks = make_tasks(model, usable, loss, s, team.device)
    if hasattr(model, "set_size"):
        model.set_size.fill_(tasks[0].most if model.transductive else s.configs_per_step)
    held = {place: model.prepare(valid[place]) for place in range(team.rank, len(valid), team.size)}
    state = {"optimizer": adamw(model, s),
             "scaler": grad_scaler(s.precision, team.device),
             "average": WeightAverage(model, s.average, swa_first(s), s.ema_decay)}
    history = {"step": [], "loss": [], "score": [], "best_step": 0, "seconds": 0.0, "configs": 0, "overflows": 0}
    best, step, losses = clone(model.state_dict()), 0, []
    # what a checkpoint must agree with to be gone on from; a partial has no name, only a repr with an address
    loss_name = getattr(loss, "__name__", re.sub(" at 0x[0-9a-f]+", "", repr(loss)))
    made_by = {**asdict(s), **{f"model {name}": value for name, value in asdict(model.settings).items()}}
    made_by = {name: np.asarray(value).tolist() for name, value in made_by.items() if name != "device"}
    made_by |= {"loss": loss_name, "graphs": [size_of(g) for g in usable], "valid": [size_of(g) for g in valid]}
    if checkpoint is not None and Path(checkpoint).exists():
        saved = read_checkpoint(checkpoint)
        before = saved.get("made_by", {})
        differ = [name for name in made_by if before.get(name) != made_by[name]]
        if differ:
            name = differ[0]
            raise ValueError(f"{checkpoint}: written with other {', '.join(differ)} ({name} {before.get(name)!s:.80}, "
                             f"now {made_by[name]!s:.80}); use another checkpoint or delete it")
        model.load_state_dict(saved["model"])
        for name, part in state.items():
            part.load_state_dict(saved[name])
        history, best, step, losses = saved["history"], saved["best"], saved["step"], saved["losses"]
    check_same(repr((made_by, step, [float(p.detach().double().sum()) for p in model.parameters()])), team)

    def save():
        if checkpoint is not None and team.rank == 0:
            save_checkpoint(checkpoint, model, best=best, step=step, made_by=made_by, history=history, losses=losses,
                            **{name: part.state_dict() for name, part in state.items()})

    if team.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(team.device)
    start, written = time.monotonic() - history["seconds"], time.monotonic()
    while step < s.steps:
        value, configs = train_step(model, tasks, loss, step, s, team, **state)
        if value is None:
            history["overflows"] += 1
        else:
            losses.append(value)
        history["configs"] += configs
        step += 1
        validates = step % s.validate_every == 0 or step == s.steps
        if validates:
            with state["average"].swapped_in():
                now = validation_score(model, valid, held, score, s, team)
                # a score may be NaN where all costs are equal; such weights are kept only while there are no others
                if s.keep == "last" or not history["best_step"] or not valid or now > np.nanmax(
                        [-np.inf, *history["score"]]):
                    best, history["best_step"] = clone(model.state_dict()), step
            history["step"].append(step)
            history["loss"].append(float(np.mean(losses)) if losses else math.nan)
            history["score"].append(now)
            losses = []
        history["seconds"] = time.monotonic() - start
        if validates or time.monotonic() - written > CHECKPOINT_SECONDS:
            save()
            written = time.monotonic()
        if validates and report and team.rank == 0:
            report(f"step {step:>6} of {s.steps}  loss {history['loss'][-1]:.4f}  "
                   f"validation {now:.4f}  {history['seconds']:.0f} s")
    model.load_state_dict(best)
    about = run_record(model, s, loss_name, tasks, history, team)
    if record is not None and team.rank == 0:
        write_json(record, about)
    return {**history, "record": about}


def validation_score(model, valid, held, score, settings, team):
    """Mean score over the validation graphs, of which each process scores its own; NaN without any."""
    scores = torch.zeros(len(valid), dtype=torch.float64, device=team.device)
    for place, tensors in held.items():
        cost = predict(model, valid[place], precision=settings.precision, tensors=tensors)
        scores[place] = score(cost, target(valid[place]))
    return float(np.mean(add_up(scores, team).tolist())) if valid else math.nan


def size_of(graph):
    """What tells one graph, or one way of pruning it, from another: name, nodes, edges, configurations."""
    return [graph.graph_id, len(graph.node_feat), len(graph.edge_index), len(graph.config_runtime)]


def adamw(model, settings):
    """The optimiser, in its fused form where PyTorch has one: for small networks the loop over weights takes longer."""
    made = partial(torch.optim.AdamW, model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    try:
        return made(fused=True)
    except RuntimeError:                                     # on CPU before PyTorch 2.4
        return made()


def clone(state):
    """A copy of a state dict that training does not change."""
    return {name: value.detach().clone() for name, value in state.items()}


def train_parallel(model, graphs, settings=None, processes=2, report=None, **as_for_train):
    """Train as `train` does, in several processes that this one starts and ends.

    The graphs of a step are shared out over them, so `graphs_per_step` must be a multiple of `processes`. In a script,
    call it below `if __name__ == "__main__":`, since each process imports the script anew.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
        Gets the trained weights. Like `loss` and `score`, its class must stand in a module, not in a notebook's cell.
    graphs : sequence of LayoutGraph or TileGraph
        Each process gets a copy.
    settings : TrainSettings, optional
        With `device` "cuda" each process has a GPU of its own; on "cpu" they share the threads of this process.
    processes : int
    report : callable, optional
        Called in this process with one line of text at each validation.
    **as_for_train
        `loss`, `valid`, `score`, `checkpoint` and `record`, as for `train`.

    Returns
    -------
    dict
        As of `train`.

    Raises
    ------
    ValueError
        If there are fewer GPUs than processes, or something cannot be sent to another process.
    RuntimeError
        If a process fails, with its error; the others are ended.
    """
    s = settings or TrainSettings()
    if not (isinstance(processes, int) and processes >= 1):
        raise ValueError(f"processes is {processes!r}; expected a whole number of at least 1")
    check_gpus(s.device, processes)
    strays = [thing for thing in (work_in_team, type(model), *as_for_train.values())
              if getattr(thing, "__module__", "") == "__main__"]
    if strays and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(f"{strays[0].__name__} is defined in a notebook's cell, which other processes cannot import; "
                         "import it from a module, or use train")
    device = next(model.parameters()).device
    try:         # as bytes: PyTorch would let the processes share the weights and so train them twice at once
        job = pickle.dumps((model.to("cpu"), list(graphs), s, as_for_train))
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise ValueError(f"cannot be sent to another process: {fault}; define it at the top of a module") from fault
    finally:
        model.to(device)
    said = multiprocessing.get_context("spawn").SimpleQueue()      # not fork: CUDA does not survive it
    with tempfile.TemporaryDirectory() as folder:
        threads = max(1, torch.get_num_threads() // processes)
        team = torch.multiprocessing.spawn(work_in_team, (folder, processes, threads, said, job), processes, join=False)
        del job
        errors = []
        try:
            while not team.join(0 if errors else 0.1) and not errors:        # a last look: who fell silent fell first
                errors = heard(said, report)
        except torch.multiprocessing.ProcessExitedException as fault:
            errors += heard(said, report)
            if fault.exit_code != 1 or not errors:
                why = f" ({fault.signal_name}; out of memory?)" if fault.signal_name else "; see its output above"
                raise RuntimeError(f"process {fault.error_index} of {processes} ended with exit code "
                                   f"{fault.exit_code}{why}") from fault
        finally:
            for process in team.processes:
                process.kill()
                process.join()
        errors += heard(said, report)
        if errors:
            raise RuntimeError(errors[0][0]) from RuntimeError(errors[0][1])
        model.to(s.device)
        return load_checkpoint(Path(folder, "trained.pt"), model)["history"]


def heard(said, report):
    """Report the lines that the processes said -> their errors, a (message, traceback) each."""
    errors = []
    while not said.empty():
        error, text = said.get()
        if error:
            errors.append((error, text))
        elif report:
            report(text)
    return errors


def work_in_team(rank, folder, processes, threads, said, job):
    """What each process does: meet the others, train, and the first one leaves the weights in `folder`."""
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=lambda: (multiprocessing.connection.wait([parent]), os._exit(1)), daemon=True).start()
    try:
        torch.set_num_threads(threads)
        model, graphs, settings, as_for_train = pickle.loads(job)
        cuda = torch.device(settings.device).type == "cuda"
        if cuda:
            settings = replace(settings, device=f"cuda:{rank}")
            torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{folder}/meeting",
                                             rank=rank, world_size=processes)
        history = train(model, graphs, settings, report=lambda line: said.put((None, line)), **as_for_train)
        if rank == 0:
            save_checkpoint(Path(folder, "trained.pt"), model, history=history)
        torch.distributed.destroy_process_group()
    except BaseException as fault:               # an interrupt, too, else the others would wait
        said.put((f"process {rank} of {processes}: {type(fault).__name__}: {fault}", traceback.format_exc()))
        sys.exit(1)
