"""The study spec, its plan, the analysis of its trials, and the report.

Everything here is pure: no Ray, no torch, no MLflow. A report can be rebuilt from a study's folder alone.
"""
