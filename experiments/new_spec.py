"""Stage 1, study spec: the text of a new one, every key with its default and what it means."""

import json
from pathlib import Path
from shlex import quote

from experiments.spec import parse_study

TEMPLATE = Path(__file__).with_name("template.yaml")
PLACEHOLDER = "NAME"
BUILT_IN = {"models": ["lenet"], "datasets": ["digits"]}
"""What the template names."""


def new_spec(name: str, file: str | None = None) -> str:
    """A commented spec by a name. file: as commands are to name it; default: `name`.yaml.

    Raises SpecError where the name can't be a folder's.
    """
    file = file or f"{name}.yaml"
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace(f"name: {PLACEHOLDER}", f"name: {json.dumps(name)}", 1)  # in quotes: 123 is a name, too
    parse_study(text, file, **BUILT_IN)
    return text.replace(f"{PLACEHOLDER}.yaml", quote(file)).replace(PLACEHOLDER, name)
