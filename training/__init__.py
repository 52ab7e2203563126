"""Data-parallel training with PyTorch alone: no Ray, no MLflow. Importing this package imports no torch.

The files beside the rooms are the ground floor: they import no room. `arguments` and `__main__` are the way in;
`rehearsal` tries a training before a study starts.
"""
