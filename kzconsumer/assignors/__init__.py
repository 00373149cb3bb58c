"""Assignment of partitions to members. The names below are the interface for authors of assignors."""

from kzconsumer.assignors.interface import AssignmentContext, Assignor, subscribers
from kzconsumer.model import ConsumerThreadId, TopicPartition

__all__ = ["AssignmentContext", "Assignor", "ConsumerThreadId", "TopicPartition", "subscribers"]
