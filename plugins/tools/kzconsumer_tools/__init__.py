"""The operator's commands of kzconsumer: groups, offsets, lag, topics, cluster, consume, assign, sink, config, top.

commands > tables > consume, sinks, offsets, groups, cluster: `commands` has one file per verb, `tables` what they
print, the rooms below read and change ZooKeeper and the brokers.
"""
