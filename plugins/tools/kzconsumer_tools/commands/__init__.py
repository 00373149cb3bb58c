"""The verbs, one file for a family of them. Read `answer`, which frames most of them.

`<family>_commands` has the options of a family and what they mean. `parsers` makes completions and the manual of them.
"""
