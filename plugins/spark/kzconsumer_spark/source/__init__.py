"""A streaming query as a member of a group. Read `group_source`: what Spark asks, also of batch reads.

`source_options`, and bounds of a batch read. `stream_offset`: the offsets of a batch in the checkpoint. `query_member`:
the member, which learns of commits at once by `prompt_commits`; and who else of this machine reads for the query.
"""
