#!/usr/bin/env python3
"""Makes a virtual environment with PyTorch and Transformers, which are needed for references alone: make_golden.py, and
what compares with them (tests/hf/transformers_load.py, tests/bench/pytorch.py).

    torch_venv.py V

Nothing is done where V has them already. Prints the path of its Python."""
import os
import subprocess
import sys

PACKAGES = ("torch", "transformers", "safetensors", "numpy")


def python_of(folder):
    """Path of a Python that has the packages; ends the program with one line if they cannot be installed."""
    python = os.path.join(os.path.abspath(folder), "bin", "python")
    if os.path.exists(python) and quiet(python, "-c", f"import {', '.join(PACKAGES)}").returncode == 0:
        return python
    for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", *PACKAGES]):
        done = quiet(*command)
        if done.returncode != 0:
            last = (done.stdout.strip().splitlines() or ["no message"])[-1]
            sys.exit(f"FAIL: no PyTorch and Transformers to compare with: {' '.join(command)} ended with "
                     f"{done.returncode}: {last}")
    return python


def quiet(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def enter(folder):
    """Goes on as the same script under that Python, unless it is that already."""
    python = python_of(folder)
    if os.path.abspath(sys.prefix) != os.path.dirname(os.path.dirname(python)):
        os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(python_of(sys.argv[1]))
