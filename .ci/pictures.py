"""Take the pictures of README.md and kernels.md from the executed notebooks of a finished run.

`python .ci/pictures.py submissions/measured` writes notebooks/pictures/*.png.
"""
import argparse
import base64
import sys
from pathlib import Path

import nbformat

# picture: the notebook, the function that draws it, and its place among the pictures of this function
PICTURES = {"layout": ("00_quickstart", "two_layouts(", 0), "kernels": ("08_kernels", "draw_networks(", 0)}


def picture_of(notebook, function, place):
    """The PNG number `place` that cells which call `function` left in an executed notebook; None without one."""
    found = [output.data["image/png"] for cell in nbformat.read(notebook, 4).cells
             if cell.cell_type == "code" and function in cell.source
             for output in cell.outputs if "image/png" in output.get("data", {})]
    return base64.b64decode(found[place]) if place < len(found) else None


def main(argv=None):
    """Write the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(prog="pictures.py", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run, such as submissions/measured")
    parser.add_argument("--only", choices=[*PICTURES], help="one picture; default: all")
    args = parser.parse_args(argv)
    for name in [args.only] if args.only else PICTURES:
        notebook, function, place = PICTURES[name]
        path = args.run / "notebooks" / f"{notebook}.ipynb"
        picture = picture_of(path, function, place) if path.is_file() else None
        if picture is None:
            print(f"pictures.py: {path}: no picture of {function.rstrip('(')}; run notebook {notebook} first",
                  file=sys.stderr)
            return 2
        target = Path(__file__).resolve().parents[1] / "notebooks" / "pictures" / f"{name}.png"
        target.write_bytes(picture)
        print(f"{target.relative_to(Path(__file__).resolve().parents[1])}: {len(picture) // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
