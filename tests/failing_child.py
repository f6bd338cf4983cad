"""kit/programs/timing_child.py with programs that fail: the first digit of a configuration says how."""
import os
import time

from kit.programs import timing_child as child

compiled = child.compiled


def failing(path, inputs):
    """Compile, or fail as the name of the configuration says."""
    kind = path.name[0]
    if kind == "1":
        os.abort()
    if kind == "2":
        time.sleep(1000)
    if kind == "3":
        raise ValueError("no such layout")
    run = compiled(path, inputs)

    def fails(*args):
        if kind == "4":
            os._exit(3)
        if kind == "5":
            time.sleep(1000)
        if kind == "6":
            held = bytearray(1 << 31)
            held[::4096] = b"1" * len(held[::4096])
            time.sleep(1000)
        return [one + 1 for one in run(*args)] if kind == "7" else run(*args)
    return fails


if __name__ == "__main__":
    child.compiled = failing
    child.main()
