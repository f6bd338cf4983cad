"""Write the sample data: a small data set in the official format, for which every true runtime is known.

All five collections and three splits have the official names, keys, dtypes and quirks: 0-padded node columns, -1-padded
configuration digits, a default configuration that is measured many times, repeated configurations, edges without
operand order, placeholder labels in the test split. The true runtimes of the test split are in a folder beside it, so
that a run can score itself as a leaderboard would. Runtimes get lognormal noise of 0.3-0.5% (layout) or 1% (tile).

Configurable nodes of one kind form a group. A group takes one of 3-9 options; an option is one row of 18 digits per
node. For each tensor, it swaps the two minor-most dimensions or not; -1 is the compiler's layout. The compiler's
default is option 0 of every group: the fastest of 8 drawn configurations. Collection `random` draws the option of every
group uniformly. Collection `default` changes one to three groups of the default, so its runtimes spread less.
"""
import hashlib
import os
import shutil
from typing import NamedTuple

import numpy as np

from kit.checks import as_path, check_choice, check_whole
from kit.data import COLLECTIONS, DIGITS, SPLITS
from kit.files import part_name, remove_leftovers, unwritable_named
from lab.sample.architectures import convolutional_net, transformer
from lab.sample.kernels import simulate_tile, tile_kernel
from lab.sample.runtimes import RESHAPE, LayoutSimulator

SAMPLE_FORMAT = 1                    # counts up when the same seed and size give other arrays
NETWORKS = {"xla": convolutional_net, "nlp": transformer}
TILE_NOISE = 0.01                    # relative, of a runtime and of its normalizer
TITLE = "Sample data, format {format}, seed {seed}, size {size}, {files} files."
ABOUT = """{title}

These files are not measurements. The graphs are generated. The runtimes come from a formula, a roofline model of one
TPU v3 core, and are multiplied by lognormal noise. The kit's sample/runtimes.py and sample/kernels.py give the formula
and the source of each constant.

npz/    the data set, in the official folders; runtimes of the test files are placeholders
truth/  the true config_runtime (and config_runtime_normalizers) of the test files, under the same relative paths
"""


class SampleSize(NamedTuple):
    """How much `write_sample` writes: counts for train, valid and test, and ranges from least to most."""
    kernels: tuple                   # files of the tile collection, per split
    tiles: tuple                     # range of the configurations of a kernel
    graphs: tuple                    # files of each layout collection, per split
    nodes: tuple                     # approximate range of the nodes of a layout graph
    configs: tuple                   # range of the configurations of a layout graph
    repeats: int                     # measurements of its default configuration; about 40 in the public files


SAMPLE_SIZES = {
    "tiny": SampleSize((6, 3, 3), (16, 60), (3, 2, 2), (30, 60), (90, 120), 12),
    "small": SampleSize((60, 16, 20), (20, 400), (20, 6, 8), (60, 220), (300, 600), 40),
}


def write_sample(root, seed=0, size="small", progress=False, relatives=0):
    """Write the sample data, whole or not at all.

    Parameters
    ----------
    root : str or Path
        Folder to create. If it already holds the same sample, nothing is written.
    seed : int
        The same seed and size give the same arrays.
    size : str
        "small" (232 files, 11 s, 5 MB) or "tiny" (40 files, under a second, for tests).
    progress : bool
        Print one line per split.
    relatives : int
        Add so many training programs per validation and test program of the layout collections: the same network with
        another batch size and width, and other configurations. All other files stay the same.

    Returns
    -------
    Path
        `root/npz`, the data root: it holds tile/ and layout/.

    Raises
    ------
    ValueError
        If `size` is unknown, `seed` or `relatives` is not a whole number of at least 0, or `root` exists and holds
        anything but this sample.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     npz = write_sample(f"{folder}/sample", size="tiny")
    ...     sorted(p.relative_to(npz).as_posix() for p in npz.glob("*/*"))
    ['layout/nlp', 'layout/xla', 'tile/xla']
    """
    check_choice(locals(), size=SAMPLE_SIZES)
    check_whole(locals(), seed=0, relatives=0)
    root, plan = as_path(root, "root"), SAMPLE_SIZES[size]
    files = sum(plan.kernels) + 2 * sum(1 for _ in _programs(plan, relatives))
    shown = size + (f", with {relatives} relatives per program" if relatives else "")
    title = TITLE.format(format=SAMPLE_FORMAT, seed=seed, size=shown, files=files)
    if _is_this_sample(root, title, files):
        return root / "npz"
    for _ in remove_leftovers(root.parent, root.name):
        print(f"note  {root} was half-written; made again", flush=True)
    fresh = part_name(root)
    try:
        with unwritable_named(root):
            _write_all(fresh, seed, plan, progress, relatives)
            (fresh / "README.txt").write_text(ABOUT.format(title=title), encoding="utf-8")
            try:
                if root.exists():
                    root.rmdir()                                # empty; os.replace would refuse on Windows
                os.replace(fresh, root)
            except OSError:
                if not _is_this_sample(root, title, files):     # else another process was faster
                    raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)                # gone if it took its place
    return root / "npz"


def _write_all(fresh, seed, plan, progress, relatives):
    """The npz files of all splits, and the truth of the test split."""
    for split, split_name in enumerate(SPLITS):
        for i in range(plan.kernels[split]):
            _write_kernel(fresh, np.random.default_rng([seed, 0, split, i]), split_name, i, plan)
        for source, of_split, i, number in _programs(plan, relatives):
            if of_split == split:
                key = [seed, 1 + list(NETWORKS).index(source), split, i]
                _write_program(fresh, key, source, split_name, plan, number)
        if progress:
            print(f"sample data: {split_name} written ({split + 1} of {len(SPLITS)})", flush=True)


def _programs(plan, relatives):
    """Yield (source, split, number of the program, number of its relative or 0), in the order of writing."""
    for split, count in enumerate(plan.graphs):
        for source in NETWORKS:
            for i in range(count):
                yield from ((source, split, i, number) for number in range(1 + relatives * (split > 0)))


def _is_this_sample(root, title, files):
    """Whether a folder holds this sample; False if it is empty or not there, an error if it holds anything else."""
    if not root.exists() or root.is_dir() and not any(root.iterdir()):
        return False
    readme = root / "README.txt"
    found = readme.read_text(encoding="utf-8").partition("\n")[0] if readme.is_file() else ""
    if found != title:
        what = found if found.startswith("Sample data") else "something else"
        raise ValueError(f"{root} holds {what}; expected {title} Delete the folder or give another one.")
    count = sum(1 for _ in (root / "npz").rglob("*.npz"))
    if count != files:
        raise ValueError(f"{root} has {count} npz files; expected {files}. Delete the folder to have it written anew.")
    return True


def _save(fresh, folder, split_name, stem, arrays, placeholders):
    """Write one npz file; in the test split with placeholders, and the true values under truth/."""
    truth = {key: arrays[key] for key in placeholders}
    if split_name == "test":
        stem = hashlib.md5(stem.encode()).hexdigest()           # official test files hide their program's name
        arrays = arrays | {key: np.full_like(arrays[key], value) for key, value in placeholders.items()}
        _save_npz(fresh / "truth" / folder / split_name / f"{stem}.npz", truth)
    _save_npz(fresh / "npz" / folder / split_name / f"{stem}.npz", arrays)


def _save_npz(path, arrays):
    """Write one npz file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)                         # its zip entries carry no time of writing


def _write_kernel(fresh, rng, split_name, i, plan):
    """Draw one kernel and write its file."""
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


def _write_program(fresh, key, source, split_name, plan, relative=0):
    """Draw one program and write its two files: both searches share graph and groups, as in the official data.

    `relative`: 0 for the program itself, else the number of one of its relatives, which is written as a training
    program. A relative has the same network and options, but its own sizes, configurations and noise.
    """
    rng, i = np.random.default_rng(key), key[-1]
    resize = np.random.default_rng([*key, relative]) if relative else None
    program = NETWORKS[source](rng, int(rng.integers(*plan.nodes)), resize)
    arrays = program.arrays()
    if i % 2:
        arrays["edge_index"] = np.asfortranarray(arrays["edge_index"])       # as most official files have it
    group, options = layout_options(program, rng)
    rng = resize or rng
    run = LayoutSimulator(*(arrays[k] for k in ("node_feat", "node_opcode", "edge_index", "node_config_ids")))
    tried = np.stack([_draw("random", options, rng) for _ in range(8)])
    best = tried[run(_layout_rows(tried, group, options)).argmin()]
    for option, code in zip(options, best):
        option[[0, code]] = option[[code, 0]]
    stem = f"sample_{program.name}_{split_name}_{i}"
    if relative:
        stem, split_name = f"{stem}_relative_{relative}", "train"
    for collection in COLLECTIONS:
        kind, _, search = collection.rpartition(":")
        if kind != f"layout:{source}":
            continue
        total = int(rng.integers(*plan.configs))
        again = int(total * rng.uniform(0.1, 0.3))
        fresh_codes = [_draw(search, options, rng) for _ in range(total - plan.repeats - again)]
        codes = np.array([*fresh_codes, *(fresh_codes[j] for j in rng.integers(len(fresh_codes), size=again)),
                          *[np.zeros(len(options), dtype=int)] * plan.repeats])
        rows = _layout_rows(codes[rng.permutation(total)], group, options)
        runtime = _measured(run(rows), rng, rng.uniform(0.003, 0.005))
        _save(fresh, collection.replace(":", "/"), split_name, stem,
              arrays | {"node_config_feat": rows.astype(np.float32), "config_runtime": runtime}, {"config_runtime": 0})


def _measured(seconds, rng, noise):
    """Seconds (k,) -> int64 ns (k,), times lognormal noise."""
    return np.rint(seconds * 1e9 * rng.lognormal(0, noise, len(seconds))).astype(np.int64)


def layout_options(program, rng):
    """Draw the options of each group -> group of each configurable node (nc,), [(options, nodes of the group, 18)]."""
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
            swaps = [None] * (usual and rng.random() < 0.5)      # elsewhere no explicit pair agrees with -1
            swaps += [corners[j] for j in rng.permutation(8)[:rng.integers(3, 9)]]
        options.append(np.array([[_row(program, v, swap) for v in members] for swap in swaps], dtype=np.int8))
    return group, options


def _row(program, v, swap):
    """18 digits: the pairs of output, input, kernel as they are (0) or swapped (1); None: the compiler's choice."""
    row = np.full(DIGITS, -1)
    if swap is not None:
        for slot, (pair, swapped) in enumerate(zip(program.configurable[v][1], swap)):
            digits = list(pair[::-1] if swapped else pair)
            if program.opcodes[v] == RESHAPE:                    # a full permutation, as in the official files
                rank = len(program.shapes[v if slot == 0 else min(u for w, u in program.edges if w == v)])
                digits += [d for d in range(rank)[::-1] if d not in pair]
            row[6 * slot:6 * slot + len(digits)] = digits
    return row


def _layout_rows(codes, group, options):
    """Option numbers (k, g) -> configuration rows (k, nc, 18) int8."""
    rows = np.empty((len(codes), len(group), DIGITS), dtype=np.int8)
    for g, option in enumerate(options):
        rows[:, group == g] = option[codes[:, g]]
    return rows


def _draw(search, options, rng):
    """Draw one configuration, as option numbers (g,)."""
    count = np.array([len(option) for option in options])
    codes = rng.integers(count)
    if search == "default":
        changed = rng.choice(len(count), rng.integers(1, min(3, len(count)) + 1), replace=False)
        codes[:] = 0
        codes[changed] = rng.integers(1, count[changed])
    return codes
