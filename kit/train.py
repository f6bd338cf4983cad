"""One training loop for every model, and prediction in bounded memory.

A step draws graphs and configurations from (seed, step) alone, and dropout likewise. So a run that was killed and
resumed ends with the same weights as one that was not.
"""
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from kit.losses import pairwise_hinge_loss


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
    score : callable, optional
        (cost (c,), runtime (c,)) -> float, higher is better; needed with `valid`.
    checkpoint : str or Path, optional
        Written at each validation and at an interrupt; if it is there already, training goes on from it.
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
        If no graph has two different runtimes, or the checkpoint belongs to other settings.
    FloatingPointError
        If the loss is not finite.
    """
    s = settings or TrainSettings()
    usable = [g for g in graphs if len(np.unique(target(g))) > 1]
    if not usable:
        raise ValueError(f"none of the {len(graphs)} training graphs has two different runtimes to rank")
    model.to(s.device)
    if not model.fitted:
        model.fit_scale(usable)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay)
    history = {"step": [], "loss": [], "score": [], "best_step": 0, "seconds": 0.0}
    best, first = clone(model.state_dict()), 0
    # what a checkpoint must agree with to be gone on from
    made_by = {"train": asdict(s), "model": asdict(model.settings), "loss": loss.__name__,
               "graphs": [[g.graph_id, len(target(g))] for g in usable], "valid": [g.graph_id for g in valid]}
    if checkpoint is not None and Path(checkpoint).exists():
        saved = torch.load(checkpoint, map_location=s.device, weights_only=True)
        differ = [name for name in made_by if saved["made_by"][name] != made_by[name]]
        if differ:
            raise ValueError(f"{checkpoint}: written with other {' and '.join(differ)} ({saved['made_by'][differ[0]]}, "
                             f"now {made_by[differ[0]]}); use another checkpoint or delete it")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        history, best, first = saved["history"], saved["best"], saved["step"]

    def save(step):
        if checkpoint is not None:
            save_checkpoint(checkpoint, model, best=best, optimizer=optimizer.state_dict(), step=step,
                            made_by=made_by, history=history)

    data = [(model.prepare(g), torch.as_tensor(target(g), device=s.device)) for g in usable]
    if hasattr(model, "set_size"):
        model.set_size.fill_(s.configs_per_step)
    losses, start, step = [], time.monotonic() - history["seconds"], first
    try:
        while step < s.steps:
            for group in optimizer.param_groups:
                group["lr"] = s.learning_rate * schedule(step, s)
            losses.append(train_step(model, data, optimizer, loss, step, s))
            step += 1
            if step % s.validate_every == 0 or step == s.steps:
                history["seconds"] = time.monotonic() - start
                scores = [score(predict(model, g), target(g)) for g in valid]
                now = float(np.mean(scores)) if scores else float("nan")
                if s.keep == "last" or not scores or now > max(history["score"], default=-np.inf):
                    best, history["best_step"] = clone(model.state_dict()), step
                history["step"].append(step)
                history["loss"].append(float(np.mean(losses)))
                history["score"].append(now)
                losses = []
                save(step)
                if report:
                    report(f"step {step:>6} of {s.steps}  loss {history['loss'][-1]:.4f}  "
                           f"validation {now:.4f}  {history['seconds']:.0f} s")
    except KeyboardInterrupt:
        save(step)
        raise
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
    if not np.isfinite(total):
        raise FloatingPointError(f"the loss is {total} at step {step}; lower the learning rate")
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
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
    return 0.5 * (1 + np.cos(np.pi * (step - warm) / max(1, settings.steps - warm)))


def target(graph):
    """What to rank by: runtime in ns (int64), for tiles divided by its normalizer (float64); shape (c,)."""
    if hasattr(graph, "config_runtime_normalizers"):
        return graph.config_runtime / graph.config_runtime_normalizers
    return graph.config_runtime


@torch.no_grad()
def predict(model, graph, budget=1 << 30, seed=0):
    """Cost of every configuration of a graph, in bounded memory.

    Parameters
    ----------
    model : LayoutGNN, TileModel or any module with their methods
    graph : LayoutGraph or TileGraph
    budget : int
        Bytes that activations may take; configurations are scored in chunks that fit.
    seed : int
        Configurations are put into chunks in an order drawn from it, never in file order. A transductive model
        sees as many together as in training, the last chunk filled up from the others.

    Returns
    -------
    ndarray, shape (c,), float64
        Lower is faster.

    Raises
    ------
    ValueError
        If the model was never trained, or gives a cost that is not finite.
    """
    if not model.fitted:
        raise ValueError("this model has no feature statistics; train it or load a checkpoint first")
    training = model.training
    model.eval()
    tensors, c = model.prepare(graph), len(graph.config_runtime)
    size = min(c, model.configs_within(tensors, budget))
    if model.transductive:
        size = min(size, int(model.set_size))
    order = np.random.default_rng(seed).permutation(c)
    cost = np.empty(c)
    for start in range(0, c, size):
        chunk = order[np.arange(start, start + size) % c]
        cost[order[start:start + size]] = model(tensors, torch.as_tensor(chunk)).double().cpu()[:c - start]
    model.train(training)
    if not np.isfinite(cost).all():
        raise ValueError(f"{graph.graph_id}: the model gives {(~np.isfinite(cost)).sum()} costs that are not finite")
    return cost


def clone(state):
    """A copy of a state dict that training does not change."""
    return {name: value.detach().clone() for name, value in state.items()}


def save_checkpoint(path, model, **extra):
    """Write a model's weights and anything else that is plain data or tensors, all or nothing.

    Parameters
    ----------
    path : str or Path
    model : Module
    **extra
        Numbers, strings, lists, dicts and tensors.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save({"model": model.state_dict(), **extra}, part)
    os.replace(part, path)


def load_checkpoint(path, model):
    """Load weights into a model of the same settings; of a training checkpoint, the best ones.

    Parameters
    ----------
    path : str or Path
    model : Module

    Returns
    -------
    dict
        What else was saved.

    Raises
    ------
    ValueError
        If the file is damaged, holds anything but plain data, or does not fit the model.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        weights = saved.pop("model")
        model.load_state_dict(saved.get("best", weights))
    except FileNotFoundError:
        raise
    except Exception as fault:           # torch.load and load_state_dict raise a dozen types
        raise ValueError(f"{path}: not a checkpoint of this model ({fault})") from fault
    return saved
