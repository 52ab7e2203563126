"""A Ray job that is no study: holds CPUs of a cluster for a while. Arguments: address, CPUs, seconds."""

import sys
import time

import ray


def main(address: str, cpus: str, seconds: str) -> None:
    """Prints a word once it holds them."""
    ray.init(address)
    held = ray.util.placement_group([{"CPU": 1}] * int(cpus))
    ray.get(held.ready())
    print("held", flush=True)
    time.sleep(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
