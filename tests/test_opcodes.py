"""Opcode names are those of the raw files."""
import re

import numpy as np
import pytest

from kit.data import COLLECTIONS, OPCODE_NAMES, OPCODES, SPLITS, npz_paths, read_layout


def test_every_number_has_a_name_of_its_own():
    assert len(OPCODE_NAMES) == OPCODES == len(set(OPCODE_NAMES))


def test_names_are_those_in_the_raw_protobuf(real_data):
    raw = (real_data / "pb/layout/xla/default/valid/unet_3d.4x4.bf16.pb").read_bytes()
    # an instruction starts with field 1, its name, and field 2, its opcode, each after its length; field 3 follows
    found = re.finditer(rb"(?s)(?=\x0a(.)([ -~]+?)\x12(.)([a-z0-9-]+)\x1a)", raw)
    opcodes = [m[4].decode() for m in found if m[1][0] == len(m[2]) and m[3][0] == len(m[4])]
    graph = read_layout(real_data / "npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz")
    assert opcodes == [OPCODE_NAMES[number] for number in graph.node_opcode]
    assert len(set(opcodes)) > 40


@pytest.mark.parametrize("collection", COLLECTIONS[1:])
def test_only_convolution_dot_and_reshape_are_configurable_in_real_files(real_data, collection):
    paths = [path for split in SPLITS for path in npz_paths(real_data, collection, split)]
    graphs = [read_layout(path) for path in paths]
    names = {OPCODE_NAMES[i] for graph in graphs for i in np.unique(graph.node_opcode[graph.node_config_ids])}
    assert paths and names <= {"convolution", "dot", "reshape"}
