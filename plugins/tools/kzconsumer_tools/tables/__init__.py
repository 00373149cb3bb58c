"""Results of the verbs as text. Read `text`, then any other.

`top_screen`: the screen of `kzconsumer top`, and its keys. `offset_tables` also has moves of groups, and what the verbs
of a sink print.
"""
