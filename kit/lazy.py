"""Packages whose names load the file that defines them, and no other file, when they are first asked for."""
import sys
from importlib import import_module


def lazy_names(package, homes):
    """The `__getattr__` and the `__all__` of a package.

    Parameters
    ----------
    package : str
        Its `__name__`.
    homes : dict of str to str
        {file of the package, without .py: the names that it defines, separated by spaces}. A name is no name of a file.

    Returns
    -------
    callable
        name -> what the file defines; AttributeError if no file does.
    list of str
    """
    files = {name: file for file, names in homes.items() for name in names.split()}

    def find(name):
        if name not in files:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(files))}")
        found = getattr(import_module(f"{package}.{files[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found
    return find, sorted(files)
