"""Print the lowest versions that pyproject.toml declares, as requirements of pip, for the Python that runs this.

Without torch: its version is fixed in requirements.txt.
"""
import re
from pathlib import Path

from packaging.requirements import Requirement


def requirements(text):
    """The [project] dependencies of a pyproject.toml, as `Requirement`s."""
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)[1]
    return [Requirement(line) for line in re.findall(r'^ *"([^"]+)"', block, re.M)]


def lowest(text):
    """The lowest version of each dependency but torch, such as "numpy==1.26"; one for another Python is left out."""
    found = [one for one in requirements(text) if one.name != "torch" and (not one.marker or one.marker.evaluate())]
    versions = [next(part.version for part in one.specifier if part.operator == ">=") for one in found]
    return [f"{one.name}=={version}" for one, version in zip(found, versions)]


if __name__ == "__main__":
    print(*lowest((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text("utf-8")), sep="\n")
