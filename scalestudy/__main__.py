"""`python -m scalestudy …` is `scalestudy …`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, whose files may hide a module; `main` looks, and puts it back

    from scalestudy.orchestration.commands.cli import main

    main()
