"""One training loop for every model, device and number of processes.

All that a step draws comes from (seed, step, place), a place being one of the graphs of the step. So a run that was
killed and resumed ends with the same weights as one that was not, on a CPU to the last bit; and several processes,
which share out the places of each step, follow the same curve as one. Start them by torchrun, each calling `train`
alike, or by `kit.parallel.train_parallel`.
"""
import math
import re
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kit.average import WeightAverage
from kit.batch import make_tasks
from kit.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint  # noqa: F401  (one place to import from)
from kit.losses import pairwise_hinge_loss
from kit.predict import PRECISIONS, configs_of, predict, target
from kit.processes import add_up, check_same, join_team
from kit.record import run_record, write_record
from kit.step import grad_scaler, swa_first, train_step

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
    usable, valid = ([g for g in some if len(np.unique(target(g))) > 1] for some in (graphs, valid))
    # one configuration measured again and again: all costs are equal, and every mean over graphs would be NaN
    valid = [g for g in valid if (configs_of(g) != configs_of(g)[0]).any()]
    if not usable:
        raise ValueError(f"none of the {len(graphs)} training graphs has two different runtimes to rank")
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
        write_record(record, about)
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
