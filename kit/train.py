"""The training loop: one for every model and device.

Read `TrainSettings`, `train` and `train_step` in this order. Everything below `train_step` is a helper.

Each random draw is seeded by (seed, step, position of the graph within the step). So a run that was killed and resumed
ends with the same weights as a run without a break; on a CPU, they are equal bit for bit.
"""
import math
import re
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from kit import train_parts
from kit.checks import as_path, check_callable, check_choice, check_number, check_whole, checked_graphs, expect
from kit.data import content_digest, target, teaches
from kit.files import plain, write_json
from kit.losses import pairwise_hinge_loss
from kit.precision import own_precision
from kit.predict import PRECISIONS, predict

CHECKPOINT_SECONDS = 60          # a killed run loses at most this much work
SWA_BEGINS = 0.75                # share of the steps before averaging; the paper, too, averages the last quarter


@dataclass(frozen=True)
class TrainSettings:
    """How to train. Defaults: the optimiser of the first place, whose runs had 46,000 to 207,000 steps."""
    steps: int = 1000
    configs_per_step: int = 64           # most configurations per graph; memory_budget may lower it
    graphs_per_step: int = 1             # computed one after another and their gradients summed: memory for one graph
    # learning rate: a linear warm-up to its peak, then a cosine down to zero
    learning_rate: float = 1e-3          # the peak
    warmup: float = 0.05                 # share of the steps
    weight_decay: float = 1e-5           # of AdamW
    clip: float = 1.0                    # largest norm of the gradient; a larger gradient is scaled down to this norm
    validate_every: int = 100            # steps
    keep: str = "best"                   # weights with the best validation score, or "last": those after the last step
    seed: int = 0                        # of all random draws; the model's settings have the seed of initial weights
    device: str = "cpu"                  # or "cuda"
    precision: str = "float32"           # of matrix products; or "bfloat16", or "float16" with a scaled loss
    average: str = "none"                # "swa": validate and keep the mean of the weights over the last steps
    memory_budget: int | None = None     # most bytes that the forward pass of a step keeps for the backward pass

    def __post_init__(self):
        named, optional = vars(self), {} if self.memory_budget is None else {"memory_budget": 1}
        # a step ranks pairs, so it needs two configurations
        check_whole(named, steps=0, configs_per_step=2, graphs_per_step=1, validate_every=1, seed=0, **optional)
        check_number(named, "a number above 0", "learning_rate", "clip")
        check_number(named, "a number of at least 0", "weight_decay")
        check_number(named, "a share, 0 to 1", "warmup")
        check_choice(named, keep=("best", "last"), precision=PRECISIONS, average=("none", "swa"))


@own_precision()
@torch.enable_grad()                     # a caller's no_grad would leave the weights as they are, without a word
def train(model, graphs, settings=None, loss=pairwise_hinge_loss, valid=(), score=None, checkpoint=None, report=None,
          record=None, deadline=None, saving=None):
    """Train a model to rank the configurations of each graph.

    Dropout draws from PyTorch's global generator. So two trainings in two threads of one process disturb each other;
    `kit.train_parts.pool.run_jobs` uses processes.

    Parameters
    ----------
    model : Module
        As `kit.models` describes; trained in place. If it has no feature statistics yet, they are fitted on `graphs`.
    graphs : sequence of LayoutGraph or TileGraph
        From one collection or several. A graph is left out unless different configurations have different runtimes.
    settings : TrainSettings, optional
    loss : callable
        (cost (k,), runtime (k,)) -> scalar Tensor.
    valid : sequence of LayoutGraph or TileGraph
        Held-out graphs, to which the same rule applies. Like `graphs`, they stay on the device as tensors.
    score : callable, optional
        (cost (c,), runtime (c,)) -> float, higher is better; needed with `valid`.
    checkpoint : str or Path, optional
        Written at each validation and about once per minute. If the file exists, training resumes from it.
    report : callable, optional
        Called with one line of text at each validation.
    record : str or Path, optional
        The run record is written to this JSON file, once training is finished.
    deadline : kit.train_parts.Deadline, optional
        After the step in which it passes, training stops and writes its checkpoint. The same call, with another
        deadline, then resumes from it and ends with the same weights as a training without a break.
    saving : callable, optional
        step -> context manager, within which each checkpoint is written.

    Returns
    -------
    dict
        "unfinished": steps that are left, above 0 only after a deadline.
        "step", "loss" and "score" (mean over `valid`, NaN without): one value per validation. "best_step": the model
        has the weights of this step. "seconds": of preparing the graphs and of training, "configs" seen: both
        include what was before a resume.
        "overflows": steps that were skipped because float16 overflowed. "record": the run record.

    Raises
    ------
    ValueError
        If an argument is not as above, an array of a graph is not as `kit.data` documents, no graph has configurations
        of different runtimes, `valid` comes without `score`, the checkpoint is damaged or belongs to another run, the
        device does not exist, or two configurations of a graph exceed the memory budget.
    FloatingPointError
        If the loss or its gradient is not finite.
    """
    s = TrainSettings() if settings is None else settings
    _check_arguments(model, s, {"loss": loss, "score": score, "report": report, "saving": saving},
                     {"checkpoint": checkpoint, "record": record})
    if deadline is not None:
        expect(hasattr(deadline, "passed"), "deadline", deadline, "a Deadline of kit.train_parts, or None")
    device, begun = train_parts.check_device(s.device), time.monotonic()
    graphs, valid = _usable(graphs, valid, score)
    model.to(device)
    if not model.fitted:
        model.fit_scale(graphs)
    tasks = train_parts.make_tasks(model, graphs, loss, s, device)
    if model.transductive:           # `predict` will score as many configurations together as training does
        model.set_size.fill_(tasks[0].most)
    held_out = [(graph, model.prepare(graph)) for graph in valid]
    identity = _identity(model, s, loss, graphs, valid)
    run = _begin(model, s, device)
    if checkpoint is not None and Path(checkpoint).exists():
        _resume(checkpoint, identity, model, run)
    start, saved = begun - run.history["seconds"], time.monotonic()
    while run.step < s.steps and not (deadline is not None and deadline.passed()):
        value, configs = train_step(model, tasks, loss, run.step, s, run.optimizer, run.scaler)
        if run.average and value is not None and run.step >= _first_averaged(s):
            run.average.update_parameters(model)
        run.count_step(value, configs)
        validates = run.step % s.validate_every == 0 or run.step == s.steps
        if validates:
            weights = run.average.module if run.average and run.average.n_averaged else model
            now = _validation_score(weights, held_out, score, s)
            run.note_validation(now, weights, s.keep if valid else "last")
        run.history["seconds"] = time.monotonic() - start
        if validates or time.monotonic() - saved > CHECKPOINT_SECONDS:
            _save(checkpoint, identity, model, run, saving)
            saved = time.monotonic()
        if validates and report:
            report(f"step {run.step:>6} of {s.steps}  loss {run.history['loss'][-1]:.4f}  "
                   + f"validation {now:.4f}  " * bool(valid) + f"{run.history['seconds']:.0f} s")
    left = s.steps - run.step
    if left:
        _save(checkpoint, identity, model, run, saving)
    model.load_state_dict(run.best)
    about = train_parts.run_record(model, s, identity["loss"], tasks, run.history, device)
    if record is not None and not left:
        write_json(record, about)
    return {**run.history, "unfinished": left, "record": about}


def train_step(model, tasks, loss, step, settings, optimizer, scaler):
    """One step of the optimiser -> loss (None: float16 overflowed), number of configurations."""
    s = settings
    for group in optimizer.param_groups:
        group["lr"] = float(s.learning_rate * schedule(step, s))
    parameters = optimizer.param_groups[0]["params"]         # `model.parameters()` and `train()` visit every module,
    if not model.training:                                   # which takes a fifth of a step of a small network
        model.train()
    optimizer.zero_grad()
    drawn = train_parts.draw_step(tasks, step, s)
    value = _backward(model, drawn, loss, s, scaler)
    scaler.unscale_(optimizer)
    norm, value = float(torch.nn.utils.clip_grad_norm_(parameters, s.clip)), float(value)
    finite = math.isfinite(norm) and math.isfinite(value)
    if not finite and not scaler.is_enabled():
        raise FloatingPointError(f"the loss is {value} at step {step}, its gradient has norm {norm}; "
                                 "lower the learning rate")
    scaler.step(optimizer)           # does nothing if the gradient overflowed; `update` then halves the scale
    scaler.update()
    if not finite and scaler.get_scale() < 1:
        raise FloatingPointError(f"the loss is {value} at step {step}, its gradient has norm {norm}, and float16 "
                                 "overflows at every scale; pass precision='bfloat16' or 'float32'")
    return value if finite else None, sum(len(d.index) for d in drawn)


def _backward(model, drawn, loss, settings, scaler):
    """Compute the gradients of a step -> its loss, a scalar."""
    s, total = settings, 0.0
    for one in drawn:                                    # one graph at a time is in memory
        value = loss(train_parts.costs_of(model, one, s.precision), one.task.runtime[one.index]) / s.graphs_per_step
        total = total + value.detach().double()          # still on the device: a float would wait for a GPU here
        if value.requires_grad:
            scaler.scale(value).backward()
    return total


def schedule(step, settings):
    """Share of the peak learning rate: a linear warm-up, then a cosine to zero."""
    # not LambdaLR: its state would have to be in checkpoints, and it warns if float16 skips the first step
    warm = max(1, round(settings.warmup * settings.steps))
    if settings.average == "swa":            # then constant, because the averaged weights would hardly differ otherwise
        step = min(step, _first_averaged(settings))
    if step < warm:
        return (step + 1) / warm
    # math, not NumPy: a checkpoint with a NumPy number cannot be read without unpickling
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, settings.steps - warm)))


def _first_averaged(settings):
    """The first step after which the weights enter the mean."""
    return round(SWA_BEGINS * settings.steps) if settings.average == "swa" else 0


def grad_scaler(precision, device):
    """Scales the loss so that small gradients survive float16; does nothing in other precisions."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=precision == "float16")
    return torch.cuda.amp.GradScaler(enabled=precision == "float16")          # PyTorch before 2.3


def _adamw(model, settings):
    """The optimiser, fused if PyTorch can, because a loop over the weights takes longer than a small network."""
    made = partial(torch.optim.AdamW, model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    try:
        return made(fused=True)
    except RuntimeError:                                     # on a CPU before PyTorch 2.4
        return made()


def _check_arguments(model, settings, functions, paths):
    """ValueError unless these arguments of `train` can be used; functions and paths may be None, but for the loss."""
    expect(hasattr(model, "configs_within"), "model", model, "a model as kit.models describes")
    expect(hasattr(settings, "configs_per_step"), "settings", settings, "TrainSettings")
    check_callable(functions, "loss", *[name for name, function in functions.items() if function is not None])
    for name, path in paths.items():
        if path is not None:
            as_path(path, name)
    for name, weight in model.named_parameters():
        if weight.is_meta or weight.is_inference():
            raise ValueError(f"the weights {name} of the model were made "
                             f"{'on the device meta' if weight.is_meta else 'within torch.inference_mode'}, so they "
                             "cannot be trained; make the model elsewhere")


def _usable(graphs, valid, score):
    """The training and validation graphs that have something to rank; ValueError if training cannot start."""
    graphs = checked_graphs("graphs", graphs)
    usable, held_out = ([g for g in some if teaches(g)] for some in (graphs, checked_graphs("valid", valid)))
    if not usable:
        raise ValueError(f"none of the {len(graphs)} training graphs has two configurations with different runtimes")
    if held_out and score is None:
        raise ValueError("validation graphs without a score; pass score=kendall_tau or tile_score")
    return usable, held_out


def _identity(model, settings, loss, graphs, valid):
    """What identifies a run: a checkpoint is resumed only if all of it matches. The device may change."""
    about = asdict(replace(settings, device="")) | {f"model {k}": v for k, v in asdict(model.settings).items()}
    # a functools.partial has no name; its repr holds the function's memory address, which is cut out
    about["loss"] = getattr(loss, "__name__", re.sub(" at 0x[0-9a-f]+", "", repr(loss)))
    for name, some in (("graphs", graphs), ("valid", valid)):
        about[name] = [[g.graph_id, len(g.node_feat), len(g.edge_index), len(g.config_runtime), content_digest(g)[:16]]
                       for g in some]
    return plain(about)


@dataclass
class _Run:
    """What training changes besides the weights of the model; a checkpoint holds all of it."""
    optimizer: torch.optim.Optimizer
    scaler: object
    average: torch.nn.Module | None          # an AveragedModel
    best: dict                               # the weights to keep
    step: int = 0                            # steps done
    losses: list = field(default_factory=list)           # since the last validation
    history: dict = field(default_factory=lambda: {"step": [], "loss": [], "score": [], "best_step": 0, "seconds": 0.0,
                                                   "configs": 0, "overflows": 0})

    def count_step(self, loss, configs):
        """Count a step; its loss is None if float16 overflowed."""
        if loss is None:
            self.history["overflows"] += 1
        else:
            self.losses.append(loss)
        self.history["configs"] += configs
        self.step += 1

    def note_validation(self, score, model, keep):
        """Note the score of the weights of `model`, and keep these weights if they are the best so far."""
        h = self.history
        # a score is NaN if all costs of a graph are equal; such weights are kept only until other weights have a score
        if keep == "last" or not h["best_step"] or score > np.nanmax([-np.inf, *h["score"]]):
            self.best, h["best_step"] = _copy(model.state_dict()), self.step
        h["step"].append(self.step)
        h["loss"].append(float(np.mean(self.losses)) if self.losses else math.nan)
        h["score"].append(score)
        self.losses = []

    def parts(self):
        """The parts that have a state_dict: {name in a checkpoint: part}."""
        parts = {"optimizer": self.optimizer, "scaler": self.scaler, "average": self.average}
        return {name: part for name, part in parts.items() if part is not None}


def _begin(model, settings, device):
    """A run before its first step."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)          # so that the run record has the peak of this run only
    average = None
    if settings.average == "swa":            # Izmailov et al., Averaging weights leads to wider optima, UAI 2018
        average = AveragedModel(model, next(model.parameters()).device)      # of the count, too: no copies to a GPU
    return _Run(_adamw(model, settings), grad_scaler(settings.precision, device), average, _copy(model.state_dict()))


def _resume(path, identity, model, run):
    """Take a model and its run from a checkpoint; CheckpointError if it belongs to another run."""
    saved = train_parts.read_checkpoint(path)
    before = saved.get("made_by", {})
    differ = [name for name in identity if before.get(name) != identity[name]]
    if differ:
        name = differ[0]
        raise train_parts.CheckpointError(
            f"{path}: written with other {', '.join(differ)} ({name} {before.get(name)!s:.80}, now "
            f"{identity[name]!s:.80}); use another checkpoint or delete it")
    model.load_state_dict(saved["model"])
    for name, part in run.parts().items():
        part.load_state_dict(saved[name])
    run.history, run.best, run.step, run.losses = saved["history"], saved["best"], saved["step"], saved["losses"]


def _save(path, identity, model, run, saving):
    """Write the checkpoint if a path is given, within `saving`."""
    if path is not None:
        with nullcontext() if saving is None else saving(run.step):
            train_parts.save_checkpoint(
                path, model, name=Path(path).name, best=run.best, step=run.step, made_by=identity,
                history=run.history, losses=run.losses,
                **{name: part.state_dict() for name, part in run.parts().items()})


def _validation_score(model, held_out, score, settings):
    """Mean score over validation graphs, [(graph, prepared tensors)]; NaN if there is none."""
    scores = [score(predict(model, graph, precision=settings.precision, tensors=tensors), target(graph))
              for graph, tensors in held_out]
    return float(np.mean(scores)) if scores else math.nan


def _copy(state):
    """A state dict that training does not change."""
    return {name: value.detach().clone() for name, value in state.items()}

