"""The verbs, one file for a family of them. Read `output_and_options`, which frames most of them.

- `<family>_commands`: options of a family and what they mean; `top_and_exporter` has two.
  `groups_repair`: problems of a group, and what removes nodes. `offsets_apply`: changes of offsets.
- `cluster_option`: which cluster and group a verb is about. `completion_and_manual` is made of all parsers.
"""
