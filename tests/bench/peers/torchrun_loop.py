"""The study as a loop over torchrun: `python -m tests.bench.peers.torchrun_loop grid.yaml`.

Run it in the folder of its records.
"""

import itertools
import subprocess
import sys
from pathlib import Path

import yaml

from tests.bench.peers.torchrun_launch import launch


def main():
    """A trial that fails is told, and the others go on."""
    settings = yaml.safe_load(Path(sys.argv[1]).read_text())
    for point in itertools.product(*settings["sweep"].values()):
        try:
            launch({**dict(zip(settings["sweep"], point, strict=True)), "epochs": settings["epochs"]})
        except subprocess.CalledProcessError as error:
            print(f"{point} failed: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
