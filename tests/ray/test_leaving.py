"""Leaving a cluster: this process goes on, whatever its other threads do meanwhile."""

import sys

from tests.support.drivers import joining
from tests.support.studies import ran

LEAVES = """
import gc, sys, threading
import ray
from scalestudy.orchestration.cluster.connection import Cluster

ray.init(sys.argv[1], log_to_driver=False)
leaving, freed = threading.Event(), []


class Held:
    def __init__(self):
        self.itself, self.reference = self, ray.put(1)

    def __del__(self):
        freed.append("leaving" if leaving.is_set() else "before")


def collect():
    leaving.wait()
    gc.collect()


gc.set_threshold(10**9)  # nothing is collected but when it is asked for
for _ in range(10):
    Held()
thread = threading.Thread(target=collect)
thread.start()
shut_down = ray.shutdown
ray.shutdown = lambda: (leaving.set(), print("collects:", gc.isenabled()), shut_down())
Cluster(address="", nodes=()).disconnect()
thread.join()
print("collects:", gc.isenabled(), *sorted(set(freed)), len(freed))
"""


def test_no_other_thread_frees_a_reference_of_rays_meanwhile(cluster):
    """Ray ends a process, with status 1 and without a word, that frees one while it is shut down."""
    left = ran([sys.executable, "-c", LEAVES, cluster.address], **joining(cluster))
    assert (left.returncode, left.stdout) == (0, "collects: False\ncollects: True before 10\n"), left.stderr
