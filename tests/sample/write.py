"""Write a small data set in the official format, with generated programs and simulated runtimes, for tests.

All five collections and three splits have the official names, keys, dtypes and quirks: 0-padded node columns, -1-padded
configuration digits, a default configuration that is measured many times, repeated configurations, edges without
operand order. Runtimes get lognormal noise of 0.3-0.5% (layout) or 1% (tile).

Configurable nodes of one kind form a group. A group takes one of 3-9 options; an option is one row of 18 digits per
node. For each tensor, it swaps the two minor-most dimensions or not; -1 is the compiler's layout. The compiler's
default is option 0 of every group: the fastest of 8 drawn configurations. Collection `random` draws the option of every
group uniformly. Collection `default` changes one to three groups of the default, so its runtimes spread less.
"""
import hashlib
from pathlib import Path

import numpy as np

from kit.data import COLLECTIONS, DIGITS, SPLITS
from sample.architectures import convolutional_net, transformer
from sample.kernels import simulate_tile, tile_kernel
from sample.runtimes import RESHAPE, LayoutSimulator

NETWORKS = {"xla": convolutional_net, "nlp": transformer}
TILE_NOISE = 0.01                # relative, of a runtime and of its normalizer
KERNELS = 6, 3, 3                # files of the tile collection: train, valid, test
TILES = 16, 60                   # least and most configurations of a kernel
GRAPHS = 3, 2, 2                 # files of each layout collection: train, valid, test
NODES = 30, 60                   # of a layout graph, approximately
CONFIGS = 90, 120                # of a layout graph
REPEATS = 12                     # measurements of its default configuration; about 40 in the public files


def write_sample(folder, seed=0, relatives=0, hidden=False):
    """Write the data set to `folder`/npz, the data root -> its path.

    `relatives`: so many training programs per validation and test program of the layout collections are added: the same
    network with another batch size and width, and other configurations. All other files stay the same. `hidden`: test
    files have placeholders for runtimes, as in the competition. Else measured.csv beside the data root says that their
    runtimes are known, as it does beside measured programs.
    """
    root = Path(folder, "npz")
    for split, split_name in enumerate(SPLITS):
        for i in range(KERNELS[split]):
            _write_kernel(root, np.random.default_rng([seed, 0, split, i]), split_name, i, hidden)
        for source, of_split, i, number in _programs(relatives):
            if of_split == split:
                key = [seed, 1 + list(NETWORKS).index(source), split, i]
                _write_program(root, key, source, split_name, number, hidden)
    if not hidden:
        Path(folder, "measured.csv").write_text("collection,split,program,family\n")
    return root


def _programs(relatives):
    """Yield (source, split, number of the program, number of its relative or 0), in the order of writing."""
    for split, count in enumerate(GRAPHS):
        for source in NETWORKS:
            for i in range(count):
                yield from ((source, split, i, number) for number in range(1 + relatives * (split > 0)))


def _save(root, folder, split_name, stem, arrays, hidden):
    """Write one npz file; a test file whose runtimes are hidden has placeholders, and hides its program's name."""
    if split_name == "test" and hidden:
        stem = hashlib.md5(stem.encode()).hexdigest()
        arrays = arrays | {key: np.full_like(arrays[key], key.endswith("normalizers"))
                           for key in arrays if key.startswith("config_runtime")}
    path = root / folder / split_name / f"{stem}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)                         # its zip entries carry no time of writing


def _write_kernel(root, rng, split_name, i, hidden):
    """Draw one kernel and write its file."""
    gain = np.inf
    while not gain < 1.6:              # from the default to the best; at most 1.14 in the public kernels seen
        arrays, config_feat = tile_kernel(rng, int(rng.integers(*TILES)))
        seconds = simulate_tile(**arrays, config_feat=config_feat)
        gain = seconds[0] / seconds.min() if len(seconds) >= TILES[0] // 2 else np.inf
    runtime = _measured(seconds, rng, TILE_NOISE)
    machines = _measured(np.repeat(seconds[0], 4), rng, TILE_NOISE)
    normalizer = machines[rng.integers(len(machines), size=len(seconds))]
    normalizer[0] = runtime[0]
    number = int.from_bytes(hashlib.md5(arrays["node_feat"].tobytes()).digest()[:8], "big", signed=True)
    stem = f"sample_{split_name}_program_{i // 5}_{number:x}"
    _save(root, "tile/xla", split_name, stem,
          arrays | {"config_feat": config_feat, "config_runtime": runtime, "config_runtime_normalizers": normalizer},
          hidden)


def _write_program(root, key, source, split_name, relative, hidden):
    """Draw one program and write its two files: both searches share graph and groups, as in the official data.

    `relative`: 0 for the program itself, else the number of one of its relatives, which is written as a training
    program. A relative has the same network and options, but its own sizes, configurations and noise.
    """
    rng, i = np.random.default_rng(key), key[-1]
    resize = np.random.default_rng([*key, relative]) if relative else None
    program = NETWORKS[source](rng, int(rng.integers(*NODES)), resize)
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
        total = int(rng.integers(*CONFIGS))
        again = int(total * rng.uniform(0.1, 0.3))
        fresh_codes = [_draw(search, options, rng) for _ in range(total - REPEATS - again)]
        codes = np.array([*fresh_codes, *(fresh_codes[j] for j in rng.integers(len(fresh_codes), size=again)),
                          *[np.zeros(len(options), dtype=int)] * REPEATS])
        rows = _layout_rows(codes[rng.permutation(total)], group, options)
        runtime = _measured(run(rows), rng, rng.uniform(0.003, 0.005))
        _save(root, collection.replace(":", "/"), split_name, stem,
              arrays | {"node_config_feat": rows.astype(np.float32), "config_runtime": runtime}, hidden)


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
