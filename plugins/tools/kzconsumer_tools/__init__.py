"""The operator's commands: a verb in `commands` reads with `groups`, `offsets` or `cluster`, and shows with `tables`.

Read `commands.answer`, then any verb.
"""
