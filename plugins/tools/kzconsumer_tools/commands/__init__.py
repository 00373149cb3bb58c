"""The verbs, one file for a family of them: options, and who is called; tables and rules are elsewhere.

Read `output_and_options`: results as table, JSON or CSV, undo files, options that verbs share.

- `<family>_commands`: options of a family and what they mean; `top_and_exporter` has two, and the keys of a terminal.
  `groups_repair`: problems of a group, and what removes nodes. `offsets_apply`: changes of offsets, with `--execute`.
- `cluster_option`: which cluster and group a verb is about. `completion` and `manual` are made of all parsers.
"""
