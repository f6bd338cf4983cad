"""Sample data: a small data set in the official format, for which every true runtime is known.

`write_sample` writes all five collections and three splits with the official names, keys, dtypes and quirks:
0-padded node columns, -1-padded configuration digits, the default configuration measured many times, repeated
configurations, edges without operand order, placeholder labels in the test split. The truth of the test split
stands beside it, so that a run can score itself as a leaderboard would.

- Graphs: `kit.sample.architectures` (convolutional nets for xla, transformers for nlp) and `kit.sample.kernels`
  (fused kernels).
- Runtimes: `kit.sample.runtimes` (layout) and `kit.sample.kernels` (tile), times lognormal noise of 0.3-0.5%
  (layout) or 1% (tile).
  They are functions of the arrays in a file, so a search can ask for the runtime of any configuration.
- Configurations: configurable nodes of one kind form a group, and a group takes one of 3-9 options, one row of 18
  digits a node. An option swaps, or not, the two minor-most dimensions of each tensor; -1 is the compiler's layout.
  The compiler's default is option 0 of every group: the fastest of 8 settings drawn. Collection `random` draws
  every group's option uniformly; `default` changes one to three groups of the default, so its spread is smaller.
"""
import hashlib
import os
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from kit.files import part_name, remove_leftovers, unwritable_named
from kit.sample.architectures import convolutional_net, transformer
from kit.sample.kernels import simulate_tile, tile_kernel
from kit.sample.runtimes import RESHAPE, layout_simulator

SAMPLE_FORMAT = 1                    # counts up when other bytes are written for the same seed and size
SPLIT_NAMES = ("train", "valid", "test")
SOURCES = ("xla", "nlp")
SEARCHES = ("random", "default")
TILE_NOISE = 0.01                    # relative, of a runtime and of its normalizer
ABOUT = """Sample data, format {format}, seed {seed}, size {size}, {files} files.

Not measured: the graphs are generated, the runtimes simulated by a roofline model of one TPU v3 core and
multiplied by lognormal noise. kit/sample/runtimes.py and kit/sample/kernels.py give the formulae and where each
constant comes from.

npz/    the official folders; test files carry placeholder labels
truth/  config_runtime (and config_runtime_normalizers) of the test files, under the same relative paths
"""


class SampleSize(NamedTuple):
    """How much `write_sample` writes; pairs are the least and the most, triples train, valid and test."""
    kernels: tuple
    tiles: tuple                     # configurations of a kernel
    graphs: tuple                    # of each layout collection
    nodes: tuple                     # of a layout graph, about
    configs: tuple                   # of a layout graph
    repeats: int                     # measurements of its default configuration; about 40 in the public files


SAMPLE_SIZES = MappingProxyType({
    "tiny": SampleSize((6, 3, 3), (16, 60), (3, 2, 2), (30, 60), (90, 120), 12),
    "small": SampleSize((60, 16, 20), (20, 400), (20, 6, 8), (60, 220), (300, 600), 40),
})


def write_sample(root, seed=0, size="small", progress=False):
    """Write the sample data, whole or not at all, and say where its npz folder is.

    Parameters
    ----------
    root : str or Path
        Folder to create. One that already holds this very sample is returned as it is.
    seed : int
        Same seed and size, same bytes.
    size : str
        "small" (232 files, 11 s, 5 MB) or "tiny" (40 files, under a second, for tests).
    progress : bool
        Print one line a collection.

    Returns
    -------
    Path
        `root/npz`, the data root: it holds tile/ and layout/.

    Raises
    ------
    ValueError
        If `size` is unknown, or `root` exists and is anything but this sample.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     npz = write_sample(Path(folder) / "sample", size="tiny")
    ...     sorted(p.relative_to(npz).as_posix() for p in npz.glob("*/*"))
    ['layout/nlp', 'layout/xla', 'tile/xla']
    """
    if size not in SAMPLE_SIZES:
        raise ValueError(f"size is {size!r}; expected one of {', '.join(SAMPLE_SIZES)}")
    root, plan = Path(root), SAMPLE_SIZES[size]
    files = sum(plan.kernels) + len(SOURCES) * len(SEARCHES) * sum(plan.graphs)
    about = ABOUT.format(format=SAMPLE_FORMAT, seed=seed, size=size, files=files)
    if _is_this_sample(root, about, files):
        return root / "npz"
    for _ in remove_leftovers(root.parent, root.name):
        print(f"note  {root} was half-written; made again", flush=True)
    fresh = part_name(root)
    try:
        with unwritable_named(root):
            _write_all(fresh, seed, plan, progress)
            (fresh / "README.txt").write_text(about, encoding="utf-8")
            try:
                if root.exists():
                    root.rmdir()                                # empty; os.replace would refuse on Windows
                os.replace(fresh, root)
            except OSError:
                if not _is_this_sample(root, about, files):     # else another process was faster
                    raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)                # not there where it took its place
    return root / "npz"


def _write_all(fresh, seed, plan, progress):
    """The npz files of all splits, and the truth of the test split."""
    for split, split_name in enumerate(SPLIT_NAMES):
        for i in range(plan.kernels[split]):
            _write_kernel(fresh, np.random.default_rng([seed, 0, split, i]), split_name, i, seed, plan)
        for s, source in enumerate(SOURCES, 1):
            for i in range(plan.graphs[split]):
                _write_program(fresh, [seed, s, split, i], source, split_name, plan)
        if progress:
            print(f"sample data: {split_name} written ({split + 1} of {len(SPLIT_NAMES)})", flush=True)


def _is_this_sample(root, about, files):
    if not root.exists() or root.is_dir() and not any(root.iterdir()):
        return False
    readme = root / "README.txt"
    found = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if found != about:
        what = found.splitlines()[0] if found.startswith("Sample data") else "something else"
        raise ValueError(f"{root} holds {what}; expected {about.splitlines()[0]} "
                         "Delete the folder or give another one.")
    count = sum(1 for _ in (root / "npz").rglob("*.npz"))
    if count != files:
        raise ValueError(f"{root} has {count} npz files; expected {files}. Delete the folder to have it written anew.")
    return True


def _save(fresh, folder, split_name, stem, arrays, placeholders):
    """One npz file; in the test split with placeholder labels, and the labels under truth/."""
    truth = {key: arrays[key] for key in placeholders}
    if split_name == "test":
        stem = hashlib.md5(stem.encode()).hexdigest()           # official test files hide their program's name
        arrays = arrays | {key: np.full_like(arrays[key], value) for key, value in placeholders.items()}
        _save_npz(fresh / "truth" / folder / split_name / f"{stem}.npz", truth)
    _save_npz(fresh / "npz" / folder / split_name / f"{stem}.npz", arrays)


def _save_npz(path, arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)                         # its zip entries carry no time of writing


def _write_kernel(fresh, rng, split_name, i, seed, plan):
    gain = np.inf
    while not gain < 1.6:              # from the default to the best; at most 1.14 in the public kernels seen
        arrays, config_feat = tile_kernel(rng, int(rng.integers(*plan.tiles)))
        seconds = simulate_tile(**arrays, config_feat=config_feat)
        gain = seconds[0] / seconds.min() if len(seconds) >= plan.tiles[0] // 2 else np.inf
    runtime = _measured(seconds, rng, TILE_NOISE)
    machines = _measured(np.repeat(seconds[0], 4), rng, TILE_NOISE)
    normalizer = machines[rng.integers(len(machines), size=len(seconds))]
    normalizer[0] = runtime[0]
    number = int.from_bytes(hashlib.md5(arrays["node_feat"].tobytes()).digest()[:8], "big", signed=True)
    stem = f"sample_{split_name}_program_{i // 5}_{number:x}"
    _save(fresh, "tile/xla", split_name, stem,
          arrays | {"config_feat": config_feat, "config_runtime": runtime, "config_runtime_normalizers": normalizer},
          {"config_runtime": 0, "config_runtime_normalizers": 1})


def _write_program(fresh, key, source, split_name, plan):
    """The same program and groups for both searches, as in the official files."""
    rng = np.random.default_rng(key)
    net = convolutional_net if source == "xla" else transformer
    program = net(rng, int(rng.integers(*plan.nodes)))
    arrays = program.arrays()
    if key[-1] % 2:
        arrays["edge_index"] = np.asfortranarray(arrays["edge_index"])       # as most official files have it
    group, options = layout_options(program, rng)
    run = layout_simulator(*(arrays[k] for k in ("node_feat", "node_opcode", "edge_index", "node_config_ids")))
    tried = np.stack([_draw("random", options, rng) for _ in range(8)])
    best = tried[run(layout_rows(tried, group, options)).argmin()]
    for option, code in zip(options, best):
        option[[0, code]] = option[[code, 0]]
    stem = f"sample_{program.name}_{split_name}_{key[-1]}"
    for search in SEARCHES:
        total = int(rng.integers(*plan.configs))
        again = int(total * rng.uniform(0.1, 0.3))
        fresh_codes = [_draw(search, options, rng) for _ in range(total - plan.repeats - again)]
        codes = np.array([*fresh_codes, *(fresh_codes[j] for j in rng.integers(len(fresh_codes), size=again)),
                          *[np.zeros(len(options), dtype=int)] * plan.repeats])
        rows = layout_rows(codes[rng.permutation(total)], group, options)
        runtime = _measured(run(rows), rng, rng.uniform(0.003, 0.005))
        _save(fresh, f"layout/{source}/{search}", split_name, stem,
              arrays | {"node_config_feat": rows.astype(np.float32), "config_runtime": runtime}, {"config_runtime": 0})


def _measured(seconds, rng, noise):
    return np.rint(seconds * 1e9 * rng.lognormal(0, noise, len(seconds))).astype(np.int64)


def layout_options(program, rng):
    """Draw what each group of a program may choose from.

    Parameters
    ----------
    program : Program
    rng : numpy.random.Generator

    Returns
    -------
    group : ndarray, shape (nc,)
        Group of each configurable node, in node order.
    options : list of ndarray, each of shape (options, nodes of the group, 18)
    """
    nodes = sorted(program.configurable)
    names = sorted({name for name, _ in program.configurable.values()})
    group = np.array([names.index(program.configurable[v][0]) for v in nodes])
    options = []
    for g in range(len(names)):
        members = [v for v, h in zip(nodes, group) if h == g]
        if program.opcodes[members[0]] == RESHAPE:
            swaps = [None, (0, 0), (1, 1)] + [(0, 1)] * (rng.random() < 0.3)
        else:
            corners = [(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
            usual = all(a - b == 1 for v in members for a, b in program.configurable[v][1])
            swaps = [None] * (usual and rng.random() < 0.5)      # elsewhere -1 never agrees with an explicit pair
            swaps += [corners[j] for j in rng.permutation(8)[:rng.integers(3, 9)]]
        options.append(np.array([[_row(program, v, swap) for v in members] for swap in swaps], dtype=np.int8))
    return group, options


def _row(program, v, swap):
    """18 digits: pairs of output, input, kernel as they are (0) or swapped (1); None leaves all to the compiler."""
    row = np.full(18, -1)
    if swap is not None:
        for slot, (pair, swapped) in enumerate(zip(program.configurable[v][1], swap)):
            digits = list(pair[::-1] if swapped else pair)
            if program.opcodes[v] == RESHAPE:                    # a full permutation, as in the official files
                rank = len(program.shapes[v if slot == 0 else program.operand_of(v)])
                digits += [d for d in range(rank)[::-1] if d not in pair]
            row[6 * slot:6 * slot + len(digits)] = digits
    return row


def layout_rows(codes, group, options):
    """Option numbers -> configuration rows.

    Parameters
    ----------
    codes : ndarray, shape (k, g)
    group : ndarray, shape (nc,)
    options : list of ndarray, each of shape (options, nodes of the group, 18)

    Returns
    -------
    ndarray, shape (k, nc, 18), int8
    """
    rows = np.empty((len(codes), len(group), 18), dtype=np.int8)
    for g, option in enumerate(options):
        rows[:, group == g] = option[codes[:, g]]
    return rows


def _draw(search, options, rng):
    """One configuration as option numbers (g,)."""
    count = np.array([len(option) for option in options])
    codes = rng.integers(count)
    if search == "default":
        changed = rng.choice(len(count), rng.integers(1, min(3, len(count)) + 1), replace=False)
        kept = np.setdiff1d(np.arange(len(count)), changed)
        codes[kept], codes[changed] = 0, rng.integers(1, count[changed])
    return codes
