"""The lowest versions that are declared: .ci/run installs them and runs the tiny run on them."""
import runpy
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[1]
FOUND = runpy.run_path(str(PROJECT / ".ci" / "lowest.py"))
def test_both_files_declare_the_same_versions():
    declared = FOUND["requirements"]((PROJECT / "pyproject.toml").read_text("utf-8"))
    lines = [line for line in (PROJECT / "requirements.txt").read_text("utf-8").splitlines() if line[:1].isalpha()]
    asked = {(one.name, str(one.marker)): one for one in map(Requirement, lines)}
    for one in declared:
        other = asked[one.name, str(one.marker)]
        assert other.specifier == one.specifier or one.name == "torch" and "2.13.0" in one.specifier, one
