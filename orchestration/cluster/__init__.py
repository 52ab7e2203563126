"""Ray clusters: starting and joining one, its nodes and their room, and checks that all nodes are fit.

Imports base and `experiments.spec`. The only room with private names of Ray.
"""
