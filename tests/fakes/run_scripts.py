"""Runs scripts one after the other, each as the main module: python -m tests.fakes.run_scripts DIRECTORY SCRIPT..."""

import runpy
import sys

if __name__ == "__main__":
    _, directory, *paths = sys.argv
    for path in paths:
        sys.argv = [path, directory]
        runpy.run_path(path, run_name="__main__")
