"""A program of one's own: from HLO or JAX to the layouts that its operations can choose, which JAX can then set."""
from kit.programs.layouts import (
    JaxProgram,
    configured,
    program_digest,
    program_from_jax,
    save_layouts,
    with_layouts,
)
from kit.programs.measure import Measurements, MeasureSettings, measure
from kit.programs.own import layout_words, program_from_hlo, with_configs
from kit.programs.timing import Bench, BenchError, BenchSettings, this_machine
from kit.programs.tune import Tuned, tune

__all__ = [
    "Bench", "BenchError", "BenchSettings", "JaxProgram", "MeasureSettings", "Measurements", "Tuned", "configured",
    "layout_words", "measure", "program_digest", "program_from_hlo", "program_from_jax", "save_layouts",
    "this_machine", "tune", "with_configs", "with_layouts",
]
