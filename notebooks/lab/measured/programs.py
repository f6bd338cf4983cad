"""The programs that are measured: networks of known families at several sizes, in three splits.

Most families are in one split only, so that validation and test programs are of families that no model has seen. A few
have a relative in another split, as many programs of the data set have; the column `family` tells which.
"""
from functools import partial
from typing import NamedTuple

import numpy as np

from lab.measured import sequences, transformers, vision
from lab.measured.layers import training


class ProgramRecipe(NamedTuple):
    """A program to measure: `make(rng)` gives a function and its arguments."""
    family: str
    source: str                  # "xla" or "nlp", as in the names of collections
    split: str
    make: object


def _listed(source, split, family, network, **variants):
    return {f"{family}_{name}".rstrip("_"): ProgramRecipe(family, source, split, partial(network, **options))
            for name, options in variants.items()}


TRAIN = dict(make=training)
PROGRAMS = {
    **_listed("xla", "train", "alexnet", vision.alexnet, b1={}, b2=dict(batch=2, size=64),
              nchw=dict(order="NCHW", turned=True), train=dict(size=64, **TRAIN)),
    **_listed("xla", "train", "resnet", vision.resnet, b2={}, nchw=dict(order="NCHW"), w16=dict(batch=4, width=16),
              train=dict(batch=2, blocks=(1, 1), **TRAIN)),
    **_listed("xla", "train", "mobilenet", vision.mobilenet, b2={}, nchw=dict(order="NCHW", size=32),
              train=dict(batch=2, size=32, blocks=2, **TRAIN)),
    **_listed("xla", "train", "mlp", sequences.mlp, b128={}, turned=dict(turned=True),
              train=dict(batch=64, layers=3, **TRAIN)),
    **_listed("xla", "train", "lstm", sequences.lstm, b16={}, turned=dict(turned=True, batch=8, width=256),
              train=dict(batch=8, length=16, layers=1, **TRAIN)),
    **_listed("xla", "train", "dlrm", sequences.dlrm, b256={}, turned=dict(turned=True, batch=512, tables=4),
              train=dict(batch=128, **TRAIN)),
    **_listed("xla", "train", "dcgan", vision.dcgan, b4={}, train=dict(batch=1, width=16, **TRAIN)),
    **_listed("xla", "train", "gat", sequences.gat, n256={}, train=dict(**TRAIN)),
    **_listed("xla", "valid", "vgg", vision.vgg, b1={}, nchw=dict(order="NCHW", width=16, batch=2)),
    **_listed("xla", "valid", "gru", sequences.gru, b16={}, both=dict(both=True, batch=8)),
    **_listed("xla", "valid", "mixer", vision.mixer, b2={}, train=dict(batch=1, layers=2, **TRAIN)),
    **_listed("xla", "valid", "resnet", vision.resnet, b1=dict(batch=1, width=48)),                      # a relative
    **_listed("xla", "test", "unet", vision.unet, b1={}, nchw=dict(order="NCHW", width=16),
              train=dict(width=16, levels=1, **TRAIN)),
    **_listed("xla", "test", "inception", vision.inception, b2=dict(batch=4), train=dict(levels=1, **TRAIN)),
    **_listed("xla", "test", "convnext", vision.convnext, b1={}, b2=dict(batch=2, size=32)),
    **_listed("xla", "test", "gcn", sequences.gcn, n1024={}, train=dict(nodes=512, edges=2048, **TRAIN)),
    **_listed("xla", "test", "alexnet", vision.alexnet, b4=dict(batch=4, size=48)),                      # a relative
    **_listed("nlp", "train", "bert", transformers.bert, b2=dict(batch=2), b4=dict(batch=4, length=32),
              turned=dict(turned=True, batch=2), deep=dict(layers=8), train=dict(layers=2, **TRAIN)),
    **_listed("nlp", "train", "gpt", transformers.gpt, b1={}, wide=dict(width=256, layers=2, length=64),
              train=dict(layers=2, length=64, **TRAIN)),
    **_listed("nlp", "train", "t5", transformers.t5, b2=dict(batch=2), train=dict(layers=1, **TRAIN)),
    **_listed("nlp", "valid", "vit", transformers.vit, b2={}, train=dict(batch=1, layers=2, **TRAIN)),
    **_listed("nlp", "valid", "decoding", transformers.decoding, b8=dict(batch=8, layers=3)),
    **_listed("nlp", "valid", "bert", transformers.bert, w192=dict(width=192, layers=3)),          # a relative
    **_listed("nlp", "test", "llama", transformers.llama, b2=dict(batch=2), train=dict(layers=2, **TRAIN)),
    **_listed("nlp", "test", "performer", transformers.performer, b2={}),
    **_listed("nlp", "test", "gpt", transformers.gpt_scan, scan_b2={}),
    **_listed("nlp", "test", "gpt", transformers.gpt, b2=dict(batch=2, length=48)),                      # a relative
}


def made(name, seed=0):
    """The function, named `name`, and the arguments of a program of PROGRAMS."""
    function, args = PROGRAMS[name].make(np.random.default_rng(seed))
    function.__name__ = name
    return function, args
