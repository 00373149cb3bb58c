"""Results of the verbs as text: rows, notes, next steps. Read `text`, then any other.

- `text`: columns, sentences, short names of streams.
- `group_tables`: `groups list`, `groups describe`, `groups doctor`, `groups plan`, `kzconsumer lag`.
- `cluster_tables`: `topics ...` and `cluster ...`. `offset_tables`: `offsets ...`, moves of groups, `sink ...`.
- `top_screen`: the screen of `kzconsumer top`, and its keys.
"""
