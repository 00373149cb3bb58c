"""The process of the group's member: options, spool files, the worker process, the sink."""
