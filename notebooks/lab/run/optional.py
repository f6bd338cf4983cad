"""Packages that a notebook uses where they are installed, and can do without."""
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version


@contextmanager
def optional(package, otherwise):
    """Code of a notebook that needs a package: where it is missing or does not work, one line says so.

    The notebook goes on then, because a run must not lose its results to a package that it can do without. `otherwise`
    says in the line what follows from it.
    """
    try:
        yield
    except Exception as fault:               # whatever goes wrong in a package of an unknown version
        if isinstance(fault, ModuleNotFoundError) and fault.name and "." not in fault.name:
            print(f"{fault.name} is not installed; {otherwise}")
            return
        with suppress(PackageNotFoundError):
            package += f" {version(package)}"
        why = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
        print(f"note  {package} does not work here ({why}); {otherwise}")
