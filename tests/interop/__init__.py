"""Groups of original, kafka-node and our members under random faults, judged by ZooKeeper's transaction log."""
