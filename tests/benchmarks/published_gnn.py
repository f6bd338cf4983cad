"""The first place's layout network as published, in PyTorch Geometric, to compare with `LayoutGNN`.

Source: thanhhau097/google_fast_or_slow, model.py, loss.py and train_xla_default.sh. Activations are dense (configs,
nodes, features), all 18 digits of every node and configuration are embedded, SAGEConv runs over the node axis.
"""
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

OPCODE_WIDTH, DIGIT_WIDTH, REDUCTION, DROPOUT = 16, 4, 8, 0.2


class PublishedAttention(nn.Module):
    """Squeeze-and-excite; then each feature is repeated, weighted by its softmax over the configurations."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(width, width // REDUCTION), nn.ReLU(inplace=True),
                                  nn.Linear(width // REDUCTION, width), nn.Sigmoid())
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        x = self.gate(x) * x
        return torch.cat([x, x * (x / self.temperature).softmax(dim=0)], dim=2)


def over_nodes(norm, x):
    """nn.InstanceNorm1d wants (configs, features, nodes)."""
    return norm(x.swapaxes(1, 2)).swapaxes(1, 2)


class PublishedLinear(nn.Module):
    """Linear, instance norm, attention, GELU."""

    def __init__(self, width_in, width):
        super().__init__()
        self.linear = nn.Linear(width_in, width // 2)
        self.norm = nn.InstanceNorm1d(width // 2)
        self.attention = PublishedAttention(width // 2)
        nn.init.xavier_normal_(self.linear.weight)
        nn.init.constant_(self.linear.bias, 0.01)

    def forward(self, x):
        return nn.functional.gelu(self.attention(over_nodes(self.norm, self.linear(x))))


class PublishedGraph(nn.Module):
    """Instance norm, SAGEConv, attention, shortcut, GELU, dropout."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.InstanceNorm1d(width)
        self.conv = SAGEConv(width, width // 2)
        self.attention = PublishedAttention(width // 2)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, edge_index):
        update = self.attention(self.conv(over_nodes(self.norm, x), edge_index))
        return self.dropout(nn.functional.gelu(update + x))


class PublishedGNN(nn.Module):
    """Two linear and two graph blocks, mean over nodes, one cost per configuration."""

    def __init__(self, width=256):
        super().__init__()
        self.opcode = nn.Embedding(121, OPCODE_WIDTH)    # the published code has 120, one too few
        self.digit = nn.Embedding(8, DIGIT_WIDTH)
        self.linears = nn.ModuleList([PublishedLinear(134 + OPCODE_WIDTH + (6 + 18) * DIGIT_WIDTH, width),
                                      PublishedLinear(width, width)])
        self.convs = nn.ModuleList(PublishedGraph(width) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, digits, numeric, layout, opcode, edge_index, configurable):
        """Digits (k, nc, 18) int64 of the configurable nodes -> costs (k,)."""
        k, n = len(digits), len(numeric)
        every = torch.full((k, n, 18), -2, device=digits.device)
        every[:, configurable] = digits
        parts = [numeric.expand(k, -1, -1), self.digit(every + 2).view(k, n, -1),
                 self.digit(layout + 2).view(1, n, -1).expand(k, -1, -1), self.opcode(opcode).expand(k, -1, -1)]
        x = torch.cat(parts, dim=2)
        for linear in self.linears:
            x = linear(x)
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.head(x.mean(dim=1)).reshape(-1)


def published_hinge(cost, runtime):
    """Mean over all k * k pairs of max(0, 1 - (cost_i - cost_j)) where runtime_i > runtime_j, else 0."""
    hinge = 1.0 - (cost[:, None] - cost[None, :])
    hinge = torch.where(runtime[:, None] > runtime[None, :], hinge, 0.0)
    return hinge.clamp(min=0).mean()
