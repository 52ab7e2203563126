"""Let programs in this environment import torchvision beside PyTorch's CPU build.

`make install` copies this file into `.venv`, with a `.pth` file that imports it whenever Python starts. So it imports
neither torch nor scalestudy before it has to.
"""

import sys


class BeforeTorchvision:
    """A finder that finds nothing: before torchvision's first import it declares the operators that are missing."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        """Return None: the finders after this one know where a module is."""
        if name != "torchvision":
            return
        sys.meta_path.remove(cls)
        try:
            from scalestudy.training.torchvision_compat import define_missing_operators
        except ImportError:  # without torch or scalestudy, torchvision's own import says what is missing
            return
        define_missing_operators()


sys.meta_path.insert(0, BeforeTorchvision)
