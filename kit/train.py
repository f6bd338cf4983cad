"""One training loop for every model.

A step draws graphs and configurations from (seed, step) alone, and dropout likewise. So a run that was killed and
resumed ends with the same weights as one that was not; on a CPU to the last bit.
"""
import math
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from kit.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint  # noqa: F401  (one place to import from)
from kit.losses import pairwise_hinge_loss
from kit.predict import configs_of, predict, target

CHECKPOINT_SECONDS = 60          # at most this much work is lost to a kill


@dataclass(frozen=True)
class TrainSettings:
    """Defaults: the first place's optimiser; its runs had 46,000 to 207,000 steps."""
    steps: int = 1000
    configs_per_step: int = 64           # of one graph
    graphs_per_step: int = 1
    learning_rate: float = 1e-3          # the peak: linear warm-up, then a cosine to zero
    warmup: float = 0.05                 # share of the steps
    weight_decay: float = 1e-5
    clip: float = 1.0                    # norm of the gradient
    validate_every: int = 100            # steps
    keep: str = "best"                   # weights at the best validation score; "last": at the end
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self):
        least = {"steps": 0, "configs_per_step": 2, "graphs_per_step": 1, "validate_every": 1, "seed": 0}
        for name, low in least.items():          # a step ranks pairs, so it takes two configurations
            value = getattr(self, name)
            if not (isinstance(value, (int, np.integer)) and value >= low):
                raise ValueError(f"{name} is {value!r}; expected a whole number of at least {low}")
        if not (np.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate is {self.learning_rate!r}; expected a number above 0")
        if self.keep not in ("best", "last"):
            raise ValueError(f"keep is {self.keep!r}; expected 'best' or 'last'")


def train(model, graphs, settings=None, loss=pairwise_hinge_loss, valid=(), score=None, checkpoint=None, report=None):
    """Train a model to rank the configurations of each graph; keep the best weights seen on the validation graphs.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
        Trained in place. Its feature statistics are fitted on `graphs` if it has none yet.
    graphs : sequence of LayoutGraph or TileGraph
        Those without two different runtimes teach nothing and are left out.
    settings : TrainSettings, optional
    loss : callable
        (cost (k,), runtime (k,)) -> scalar Tensor.
    valid : sequence of LayoutGraph or TileGraph
        Those without two different runtimes and two different configurations are left out.
    score : callable, optional
        (cost (c,), runtime (c,)) -> float, higher is better; needed with `valid`.
    checkpoint : str or Path, optional
        Written at each validation and about once a minute between two steps; if it is there already, training
        goes on from it.
    report : callable, optional
        Called with one line of text at each validation.

    Returns
    -------
    dict
        "step", "loss" and "score" (mean over `valid`, NaN without), one value per validation; "best_step";
        "seconds" of training so far.

    Raises
    ------
    ValueError
        If no graph has two different runtimes, `valid` comes without `score`, or the checkpoint is damaged or
        belongs to other settings.
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
    model.to(s.device)
    if not model.fitted:
        model.fit_scale(usable)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay)
    history = {"step": [], "loss": [], "score": [], "best_step": 0, "seconds": 0.0}
    best, first, losses = clone(model.state_dict()), 0, []
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
        optimizer.load_state_dict(saved["optimizer"])
        history, best, first, losses = saved["history"], saved["best"], saved["step"], saved["losses"]

    def save(step):
        if checkpoint is not None:
            save_checkpoint(checkpoint, model, best=best, optimizer=optimizer.state_dict(), step=step,
                            made_by=made_by, history=history, losses=losses)

    data = [(model.prepare(g), torch.tensor(target(g), device=s.device)) for g in usable]
    if hasattr(model, "set_size"):
        model.set_size.fill_(s.configs_per_step)
    start, step, written = time.monotonic() - history["seconds"], first, time.monotonic()
    while step < s.steps:
        for group in optimizer.param_groups:
            group["lr"] = float(s.learning_rate * schedule(step, s))
        losses.append(train_step(model, data, optimizer, loss, step, s))
        step += 1
        validates = step % s.validate_every == 0 or step == s.steps
        if validates:
            scores = [score(predict(model, g), target(g)) for g in valid]
            now = float(np.mean(scores)) if scores else float("nan")
            # a score may be NaN where all costs are equal; such weights are kept only while there are no others
            if s.keep == "last" or not history["best_step"] or not scores or now > np.nanmax(
                    [-np.inf, *history["score"]]):
                best, history["best_step"] = clone(model.state_dict()), step
            history["step"].append(step)
            history["loss"].append(float(np.mean(losses)))
            history["score"].append(now)
            losses = []
        history["seconds"] = time.monotonic() - start
        if validates or time.monotonic() - written > CHECKPOINT_SECONDS:
            save(step)
            written = time.monotonic()
        if validates and report:
            report(f"step {step:>6} of {s.steps}  loss {history['loss'][-1]:.4f}  "
                   f"validation {now:.4f}  {history['seconds']:.0f} s")
    model.load_state_dict(best)
    return history


def train_step(model, data, optimizer, loss, step, settings):
    """One step of the optimiser -> the loss; all that is drawn depends on (seed, step) only."""
    rng = np.random.default_rng([settings.seed, step])
    model.train()
    optimizer.zero_grad()
    total = 0.0
    with torch.random.fork_rng(devices=[] if settings.device == "cpu" else None):
        torch.manual_seed(int(rng.integers(2 ** 62)))
        for place in range(settings.graphs_per_step):
            tensors, runtime = data[nth_graph(step * settings.graphs_per_step + place, len(data), settings.seed)]
            k = min(settings.configs_per_step, len(runtime))
            index = torch.as_tensor(rng.choice(len(runtime), k, replace=False), device=runtime.device)
            value = loss(model(tensors, index), runtime[index]) / settings.graphs_per_step
            if value.requires_grad:
                value.backward()
            total += float(value.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip))
    if not np.isfinite(total + norm):
        raise FloatingPointError(f"the loss is {total} at step {step}, its gradient has norm {norm}; "
                                 "lower the learning rate")
    optimizer.step()
    return total


def nth_graph(place, count, seed):
    """The graph at a place of an endless sequence in which each pass over the graphs is shuffled anew."""
    return int(np.random.default_rng([seed, place // count, 1]).permutation(count)[place % count])


def schedule(step, settings):
    """Share of the peak learning rate: linear warm-up, then a cosine to zero."""
    warm = max(1, round(settings.warmup * settings.steps))
    if step < warm:
        return (step + 1) / warm
    # math, not NumPy: a checkpoint that holds a NumPy number cannot be read again without unpickling
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, settings.steps - warm)))


def size_of(graph):
    """What tells one graph, or one way of pruning it, from another: name, nodes, edges, configurations."""
    return [graph.graph_id, len(graph.node_feat), len(graph.edge_index), len(graph.config_runtime)]


def clone(state):
    """A copy of a state dict that training does not change."""
    return {name: value.detach().clone() for name, value in state.items()}
