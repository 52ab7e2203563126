"""Ray clusters: starting and joining one, its nodes and their room, and checks that every node is fit.

Imports base and `experiments.spec`. Private names of Ray are in `ray_private` alone, except Ray Train's.
"""
