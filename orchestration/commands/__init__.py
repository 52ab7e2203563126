"""The command line: every command, its options, and what it prints.

Imports all other rooms of orchestration but sweep, `experiments` and `training`. `python -m scalestudy` and the command
`scalestudy` import it, and no room does.
"""
