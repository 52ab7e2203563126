"""Runs that others made, judged: sources that only an outside system can read (MLflow's servers and databases), and the
folder of the study that they make.

Imports base, tracking, study and what experiments has for runs of others.
"""
