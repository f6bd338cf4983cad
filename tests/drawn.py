"""Small random graphs, the ways of writing one down, and slow twins that several test files share."""
import math
import weakref

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kit.agreement import find_meetings
from kit.data import LayoutGraph, TileGraph
from kit.models.segments import subgraph
from kit.pad import repad_layout

NEAR = dict(atol=2e-5, rtol=1e-4)        # float32 sums in another order
SHAPES = ((8, 128), (8, 64), (4, 8, 16))
SQUARES = ((8, 8), (4, 128), (8, 8, 8))        # equal sizes: different ways give a dimension different names


def drawn_features(rng, n):
    """(n, 140) with shapes, their layouts (padded with 0 as in the data) and some constant columns."""
    node_feat = np.zeros((n, 140), np.float32)
    node_feat[:, 37:80] = rng.integers(-2, 50, (n, 43))
    for row in node_feat:
        rank = rng.integers(0, 5)
        row[21:21 + rank] = rng.integers(1, 500, rank)
        row[134:134 + rank] = rng.permutation(rank)
    return node_feat


def rewrite(path, **arrays):
    """Write an npz file again, without compression; `arrays` replace or join those that it has."""
    with np.load(path) as npz:
        arrays = {name: npz[name] for name in npz.files} | arrays
    np.savez(path, **arrays)


def drawn_layout(seed=0, n=12, nc=5, g=3, k=4, c=7, m=16, codes=np.uint8):
    rng = np.random.default_rng(seed)
    return LayoutGraph("drawn", drawn_features(rng, n), rng.integers(1, 121, n), rng.integers(0, n, (m, 2)),
                       rng.permutation(n)[:nc], np.array([0]), rng.integers(0, k, (c, g)).astype(codes),
                       np.concatenate([np.arange(g), rng.integers(0, max(g, 1), nc)])[:nc],
                       rng.integers(-1, 6, (nc, k, 18)).astype(np.int8), rng.integers(10 ** 6, 10 ** 7, c))


def drawn_neighbours(seed=0, n=14, nc=6, g=3, k=4, c=7, m=30):
    """A drawn layout of few shapes and digits, so that neighbours often agree, and with many edges."""
    graph, rng = drawn_layout(seed, n, nc, g, k, c, m), np.random.default_rng([seed, 1])
    node_feat = graph.node_feat.copy()
    node_feat[:, 21:27] = node_feat[:, 134:140] = 0
    for row in node_feat:
        shape = SHAPES[rng.integers(len(SHAPES))]
        row[21:21 + len(shape)], row[134:134 + len(shape)] = shape, rng.permutation(len(shape))
    return graph._replace(node_feat=node_feat, code_rows=rng.integers(-1, 3, (nc, k, 18)).astype(np.int8))


def drawn_program(seed, **sizes):
    """Drawn neighbours of which most are configurable in the data set, too: convolution, dot, reshape."""
    graph = drawn_neighbours(seed, **sizes)
    opcode = np.random.default_rng([seed, 2]).choice([26, 34, 75, 7], len(graph.node_opcode))
    return graph._replace(node_opcode=opcode)


def drawn_chains(seed=0, n=24, nc=7, g=3, k=4, c=7, transposes=0.3):
    """A drawn layout whose shapes are passed on: chains, several ways between two nodes, joins, transposes."""
    graph, rng = drawn_layout(seed, n, nc, g, k, c), np.random.default_rng([seed, 2])
    node_feat, node_opcode, edges = graph.node_feat.copy(), np.full(n, 2), []
    node_feat[:, 21:37] = node_feat[:, 134:140] = 0
    for node, row in enumerate(node_feat):
        shape = SQUARES[rng.integers(len(SQUARES))]
        if node and rng.random() < 0.9:
            operand = max(0, node - int(rng.integers(1, 4)))
            shape = node_feat[operand, 21:27][:np.count_nonzero(node_feat[operand, 21:27])]
            edges.append([node, operand])
            if rng.random() < transposes:
                node_opcode[node] = 98
                source = rng.permutation(len(shape))
                row[31:31 + len(shape)], shape = source, shape[source]
                row[31] = 0 if rng.random() < 0.1 else row[31]             # some are broken
            alike = [v for v in range(max(0, node - 6), node) if (node_feat[v, 21:21 + len(shape)] == shape).all()]
            if node_opcode[node] != 98 and alike and rng.random() < 0.7:
                edges.append([node, alike[rng.integers(len(alike))]])
        row[21:21 + len(shape)], row[134:134 + len(shape)] = shape, rng.permutation(len(shape))
    graph = graph._replace(node_feat=node_feat, node_opcode=node_opcode, edge_index=np.array(edges),
                           code_rows=rng.integers(-1, 3, (nc, k, 18)).astype(np.int8))
    return relabelled_nodes(graph, rng)


TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)


def slow_bytes(graph, node):
    """Bytes of a node's output without padding."""
    width = sum(has * width for has, width in zip(graph.node_feat[node, 2:21].tolist(), TYPE_BYTES))
    return max(width, 1) * math.prod(max(size, 1) for size in graph.node_feat[node, 21:27].tolist())


def slow_depths(graph):
    """{node: edges on the longest path to it}, -1 where paths never end."""
    depths, operands = {}, {node: [] for node in range(len(graph.node_feat))}
    for u, v in graph.edge_index.tolist():
        operands[u].append(v)
    for _ in operands:
        for node, some in operands.items():
            if node not in depths and all(v in depths for v in some):
                depths[node] = 1 + max((depths[v] for v in some), default=-1)
    return {node: depths.get(node, -1) for node in operands}


def slow_roles(graph, depths):
    """{(reader, operand): 1 first operand, 2 kernel, 3 either, 0 neither}, operand by operand; readers configurable."""
    feat, roles = graph.node_feat.tolist(), {}
    layouts = repad_layout(graph.node_feat)[0][:, 134:136].clip(-1, 5).tolist()

    def key(u, v):
        row, output, shape = feat[u], feat[u][21:27], feat[v][21:27]

        def at(sizes, column):
            return sizes[min(max(int(row[column]), 0), 5)]
        fits = 0
        if graph.node_opcode[u] == 26:
            fits = (all(row[37 + i] in (0, at(shape, 101 + i)) for i in range(4))
                    + (at(shape, 100) == at(output, 106)) - (at(shape, 93) == at(output, 105)))
        elif graph.node_opcode[u] == 34:
            rank = sum(size != 0 for size in output)
            fits = (output[max(rank - 1, 0)] in shape) - (output[0] in shape)
        return fits, -slow_bytes(graph, v), shape[::-1], layouts[v][::-1], depths[v]
    for u in graph.node_config_ids.tolist():
        keys = {v: key(u, v) for w, v in graph.edge_index.tolist() if w == u}
        roles |= {(u, v): (one == min(keys.values())) + 2 * (one == max(keys.values())) for v, one in keys.items()}
    return roles


def slow_meetings(graph, reach=12):
    """Walk from each configurable node: {(end, end, join): (hops, names, names, role, size)}; ends: node_config_ids."""
    ids, consumers = graph.node_config_ids.tolist(), {node: [] for node in range(len(graph.node_feat))}
    place = {node: at for at, node in enumerate(ids)}
    for u, v in graph.edge_index.tolist():
        consumers[v].append(u)
    shape = [[size for size in row[21:27].tolist() if size] for row in graph.node_feat]

    def after(u, v, names):
        """What the dimensions are called in the output of u, which reads v; None where the way ends."""
        if graph.node_feat[v, 3] and not graph.node_feat[u, 3]:          # a mask
            return None
        if graph.node_opcode[u] != 98:
            resizes = graph.node_opcode[u] in (22, 35, 36, 62, 72, 84, 92) and len(shape[u]) == len(shape[v])
            return names if resizes or shape[u] == shape[v] else None
        source = [int(d) for d in graph.node_feat[u, 31:31 + len(shape[u])]]
        if sorted(source) != list(range(len(shape[v]))) or shape[u] != [shape[v][d] for d in source]:
            return None
        return tuple(source.index(name) if name in source else name for name in names)
    found, ways, unnamed, roles = {}, [], tuple(range(6)), slow_roles(graph, slow_depths(graph))

    def share(node, start):
        return slow_bytes(graph, node) / slow_bytes(graph, ids[start])

    def meet(one, other, join, way):
        if way[0] <= reach:
            found[one, other, join] = min(way, found.get((one, other, join), way))
    for start, source in enumerate(ids):
        layer, reached = {source: unnamed}, {}
        for hop in range(1, reach + 1):
            following = {}
            for v, names in layer.items():
                for u in consumers[v]:
                    if u in place:
                        meet(start, place[u], False, (hop, names, unnamed, roles[u, v], share(v, start)))
                    elif u not in reached and after(u, v, names):
                        following[u] = min(after(u, v, names), following.get(u, (6,)))
            layer = following
            reached |= {u: (hop, names) for u, names in layer.items()}
        ways.append(reached)
    for one, its in enumerate(ways):
        for other, theirs in enumerate(ways):
            for node in its.keys() & theirs.keys() if one != other else ():
                meet(one, other, True, (its[node][0] + theirs[node][0], its[node][1], theirs[node][1], 0,
                                        share(node, one)))
    return found


def arrays_of(graph):
    """All that a layout graph holds, its meetings one by one."""
    return [*graph[:-1], *(graph.meetings or ())]


def drawn_tile(seed=0, n=9, c=6):
    rng = np.random.default_rng(seed)
    node_feat = drawn_features(rng, n)
    node_feat[-1, [0, 21, 22, 134, 135]] = 1, 20, 256, 1, 0
    node_feat[-1, 23:27] = 0
    config_feat = rng.integers(0, 100, (c, 24)).astype(np.float32)
    return TileGraph("drawn", node_feat, rng.integers(1, 121, n), rng.integers(0, n, (11, 2)), config_feat,
                     rng.integers(1, 100, c), rng.integers(1, 100, c))


def ready(model, *graphs):
    model.fit_scale(graphs)
    return model.eval()


@torch.no_grad()
def costs(model, graph, index=None):
    index = range(len(graph.config_runtime)) if index is None else index
    return model(model.prepare(graph), torch.tensor(list(index)))


def slow_nodes(model, graph, fitted_on):
    """What the first layer reads of each node: standardised numbers, embedded repaired layout, embedded opcode."""
    def squash(g):
        x = g.node_feat[:, :134].astype(float)
        return np.where(x < 0, -1, 1) * np.log(1 + abs(x))
    seen = np.concatenate([squash(g) for g in fitted_on])
    rows = []
    for row, opcode, numbers in zip(graph.node_feat, graph.node_opcode, squash(graph)):
        spread = seen.std(axis=0)
        numbers = np.where(spread > 1e-9, (numbers - seen.mean(axis=0)) / np.where(spread > 1e-9, spread, 1), 0)
        rank = sum(size != 0 for size in row[21:27])
        digits = [int(digit) if place < rank else -1 for place, digit in enumerate(row[134:140])]
        rows.append(torch.cat([torch.tensor(numbers, dtype=torch.float32),
                               *[model.digit.weight[digit + 2] for digit in digits], model.opcode.weight[opcode]]))
    return torch.stack(rows)


def slow_neighbours(x, edges):
    """Mean over the senders of each node, node by node; x (n, width)."""
    rows = []
    for node in range(len(x)):
        senders = [u for u, v in edges.tolist() if v == node]
        rows.append(torch.stack([x[u] for u in senders]).mean(0) if senders else torch.zeros_like(x[0]))
    return torch.stack(rows)


def slow_graph_blocks(model, graph, fitted_on):
    """Nodes after the GraphSAGE blocks, with layer norm, of a model that encodes a graph once."""
    x = slow_nodes(model, graph, fitted_on)
    x = model.node(x[:, -model.node.in_features:])           # a model without features reads the opcode alone
    for norm, sage in zip(model.norms, model.sages):
        h = torch.nn.functional.layer_norm(x, x.shape[1:], norm.weight, norm.bias)
        ways = zip(sage.neighbours, [graph.edge_index, graph.edge_index[:, ::-1]], strict=True)
        update = sage.own(h) + sum(weights(slow_neighbours(h, edges)) for weights, edges in ways)
        x = x + torch.nn.functional.gelu(update)
    return x


def relabelled_nodes(graph, rng):
    order = rng.permutation(len(graph.node_feat))
    place = np.argsort(order)
    return graph._replace(node_feat=graph.node_feat[order], node_opcode=graph.node_opcode[order],
                          edge_index=place[graph.edge_index], node_config_ids=place[graph.node_config_ids])


def reordered_edges(graph, rng):
    return graph._replace(edge_index=rng.permutation(graph.edge_index))


def reordered_configurable_nodes(graph, rng):
    order = rng.permutation(len(graph.node_config_ids))
    return graph._replace(node_config_ids=graph.node_config_ids[order], node_group=graph.node_group[order],
                          code_rows=graph.code_rows[order])


def renamed_groups(graph, rng):
    order = rng.permutation(graph.config_codes.shape[1])
    return graph._replace(config_codes=graph.config_codes[:, order], node_group=np.argsort(order)[graph.node_group])


def renamed_codes(graph, rng):
    order = rng.permutation(graph.code_rows.shape[1])
    return graph._replace(config_codes=np.argsort(order).astype(np.uint8)[graph.config_codes],
                          code_rows=graph.code_rows[:, order])


def every_node_its_own_group(graph, rng):
    return graph._replace(config_codes=graph.config_codes[:, graph.node_group],
                          node_group=np.arange(len(graph.node_group)))


def some_configs(graph, index):
    """The same program with some of its configurations."""
    return graph._replace(config_codes=graph.config_codes[index], config_runtime=graph.config_runtime[index])


def read_only(graph, rng):
    graph = graph._replace(**{name: getattr(graph, name).copy() for name in graph._fields[1:10]})
    for array in graph[1:10]:
        array.flags.writeable = False
    return graph


WRITTEN_OTHERWISE = (relabelled_nodes, reordered_edges, reordered_configurable_nodes, renamed_groups, renamed_codes,
                     every_node_its_own_group, read_only)


def segments(graph, size):
    """A layout graph cut into runs of at most `size` nodes."""
    graph, n = graph._replace(meetings=graph.meetings or find_meetings(graph)), len(graph.node_feat)
    return [subgraph(graph, np.arange(start, min(start + size, n))) for start in range(0, n, size)]


class Held(TorchDispatchMode):
    """Count the bytes of the dense tensors that are alive at once, of those met while it is entered."""
    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in tree_leaves((args, kwargs, out)):       # of NumPy's making, or by another thread: known by its use
            if isinstance(t, torch.Tensor) and t.layout == torch.strided:
                storage = t.untyped_storage()
                if storage.data_ptr() not in self.known:
                    self.known.add(storage.data_ptr())
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.release, storage.data_ptr(), storage.nbytes())
        return out

    def release(self, place, size):
        self.known.discard(place)
        self.now -= size


@torch.no_grad()
def held(model, tensors, j):
    """Bytes that scoring `j` configurations holds at most."""
    with Held() as count:
        model(tensors, torch.arange(j))
    return count.peak
