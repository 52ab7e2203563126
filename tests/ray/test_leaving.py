"""Leaving a cluster: this process goes on, whatever its other threads do meanwhile."""

import subprocess
import sys

LEAVES = """
import gc, threading, time
import ray
from scalestudy.orchestration.cluster.connection import Cluster

ray.init(num_cpus=1, log_to_driver=False)
leaving = threading.Event()


class Held:
    def __init__(self):
        self.itself, self.reference = self, ray.put(1)

    def __del__(self):
        time.sleep(0.002)  # another thread collects garbage for as long as leaving takes


def collect():
    leaving.wait()
    gc.collect()


gc.disable()
for _ in range(2000):
    Held()
gc.enable()
thread = threading.Thread(target=collect)
thread.start()
shut_down = ray.shutdown
ray.shutdown = lambda: (leaving.set(), print("collects:", gc.isenabled()), shut_down())
Cluster(address="", nodes=()).disconnect()
thread.join()
print("collects:", gc.isenabled())
"""


def test_garbage_of_rays_does_not_end_the_process():
    """Ray ends a process that frees one of its references while it is shut down."""
    ran = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "collects: False\ncollects: True\n"), ran.stderr
