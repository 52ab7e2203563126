"""What trials measured: records, cells, targets, speed-up, and what several seeds say.

Imports spec, plan and laws.
"""
