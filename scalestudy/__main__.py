"""`python -m scalestudy …` is `scalestudy …`."""

from scalestudy.orchestration.commands.cli import main

if __name__ == "__main__":
    main()
