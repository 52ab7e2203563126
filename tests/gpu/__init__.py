"""`make gpu`: proofs and figures for a machine with one GPU, Python and PyTorch, and neither Ray nor MLflow.

The parts import `scalestudy.training`, torch and NumPy alone. pytest does not collect this folder.
"""
