"""Ray clusters: starting and joining one, its nodes and their room, and checks that all nodes are fit.

Imports base and `experiments.spec`. Its `ray_private` has the private names of Ray, all but Ray Train's.
"""
