"""A program of one's own: from a saved HLO module to the layouts that its operations can choose."""
from kit.programs.hlo import parse_hlo, program_arrays, write_sequences
from kit.programs.own import layout_objective, layout_words, program_from_hlo, sample_configs, with_configs

__all__ = [
    "layout_objective", "layout_words", "parse_hlo", "program_arrays", "program_from_hlo", "sample_configs",
    "with_configs", "write_sequences",
]
