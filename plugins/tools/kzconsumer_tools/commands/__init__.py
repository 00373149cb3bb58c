"""The verbs, one file for a family of them. Read `output_and_options`, which frames most of them.

- `<family>_commands`: options of a family and what they mean; `monitors` has `kzconsumer top` and the exporter.
  `groups_repair`: problems of a group, and what removes nodes. `offsets_apply`: changes of offsets.
- `cluster_option`: which cluster and group a verb is about. `parsers` makes completions and the manual.
"""
