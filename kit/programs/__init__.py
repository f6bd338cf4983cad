"""A program of one's own: from a saved HLO module to the layouts that its operations can choose."""
from kit.programs.hlo import file_bytes, parse_hlo, program_arrays, write_sequences
from kit.programs.own import layout_words, program_from_hlo, with_configs

__all__ = [
    "file_bytes", "layout_words", "parse_hlo", "program_arrays", "program_from_hlo", "with_configs", "write_sequences",
]
