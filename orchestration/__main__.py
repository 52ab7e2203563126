"""`python -m orchestration …` is `scalestudy …`."""

from orchestration.cli import main

if __name__ == "__main__":
    main()
