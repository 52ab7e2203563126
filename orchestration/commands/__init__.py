"""The command line: every command, its options, and what it prints.

May import all other rooms of orchestration, `experiments` and `training`. `python -m scalestudy` and the command
`scalestudy` import it, and no room does.
"""
