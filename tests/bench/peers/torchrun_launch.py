"""Runs one trial by torchrun, which starts its workers anew, twice at most, when one of them dies."""

import json
import os
import subprocess
import sys
from pathlib import Path


def launch(config):
    """The epochs' records; raises CalledProcessError for a trial that failed."""
    folder = Path("trials") / "-".join(f"{name}={value}" for name, value in config.items())
    folder.mkdir(parents=True, exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2"]
    workers, script = f"--nproc-per-node={config['num_gpus']}", ["-m", "tests.bench.peers.torchrun_train"]
    one_core_each = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, workers, *script, folder, json.dumps(config)], env=one_core_each, check=True)
    return json.loads((folder / "epochs.json").read_text())["epochs"]
