"""The error codes brokers answer with, and what each means for what happens next.

Owns no state. Names and flags are those of `org.apache.kafka.common.protocol.Errors` (Kafka 3.9): retriable as
RetriableException, refresh_metadata as InvalidMetadataException (the leader is no longer where we think it is).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kzconsumer.errors import BrokerError

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_COMPRESSION_TYPE: Final = 76


class ErrorCode(NamedTuple):
    name: str
    retriable: bool = False
    refresh_metadata: bool = False


ERROR_CODES: Final[Mapping[int, ErrorCode]] = {
    -1: ErrorCode("UNKNOWN_SERVER_ERROR"),
    0: ErrorCode("NONE"),
    1: ErrorCode("OFFSET_OUT_OF_RANGE"),
    2: ErrorCode("CORRUPT_MESSAGE", retriable=True),
    3: ErrorCode("UNKNOWN_TOPIC_OR_PARTITION", retriable=True, refresh_metadata=True),
    4: ErrorCode("INVALID_FETCH_SIZE"),
    5: ErrorCode("LEADER_NOT_AVAILABLE", retriable=True, refresh_metadata=True),
    6: ErrorCode("NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True),
    7: ErrorCode("REQUEST_TIMED_OUT", retriable=True),
    8: ErrorCode("BROKER_NOT_AVAILABLE"),
    9: ErrorCode("REPLICA_NOT_AVAILABLE", retriable=True, refresh_metadata=True),
    10: ErrorCode("MESSAGE_TOO_LARGE"),
    11: ErrorCode("STALE_CONTROLLER_EPOCH"),
    12: ErrorCode("OFFSET_METADATA_TOO_LARGE"),
    13: ErrorCode("NETWORK_EXCEPTION", retriable=True, refresh_metadata=True),
    14: ErrorCode("COORDINATOR_LOAD_IN_PROGRESS", retriable=True),
    15: ErrorCode("COORDINATOR_NOT_AVAILABLE", retriable=True),
    16: ErrorCode("NOT_COORDINATOR", retriable=True),
    17: ErrorCode("INVALID_TOPIC_EXCEPTION"),
    18: ErrorCode("RECORD_LIST_TOO_LARGE"),
    19: ErrorCode("NOT_ENOUGH_REPLICAS", retriable=True),
    20: ErrorCode("NOT_ENOUGH_REPLICAS_AFTER_APPEND", retriable=True),
    21: ErrorCode("INVALID_REQUIRED_ACKS"),
    22: ErrorCode("ILLEGAL_GENERATION"),
    23: ErrorCode("INCONSISTENT_GROUP_PROTOCOL"),
    24: ErrorCode("INVALID_GROUP_ID"),
    25: ErrorCode("UNKNOWN_MEMBER_ID"),
    26: ErrorCode("INVALID_SESSION_TIMEOUT"),
    27: ErrorCode("REBALANCE_IN_PROGRESS"),
    28: ErrorCode("INVALID_COMMIT_OFFSET_SIZE"),
    29: ErrorCode("TOPIC_AUTHORIZATION_FAILED"),
    30: ErrorCode("GROUP_AUTHORIZATION_FAILED"),
    31: ErrorCode("CLUSTER_AUTHORIZATION_FAILED"),
    32: ErrorCode("INVALID_TIMESTAMP"),
    33: ErrorCode("UNSUPPORTED_SASL_MECHANISM"),
    34: ErrorCode("ILLEGAL_SASL_STATE"),
    35: ErrorCode("UNSUPPORTED_VERSION"),
    36: ErrorCode("TOPIC_ALREADY_EXISTS"),
    37: ErrorCode("INVALID_PARTITIONS"),
    38: ErrorCode("INVALID_REPLICATION_FACTOR"),
    39: ErrorCode("INVALID_REPLICA_ASSIGNMENT"),
    40: ErrorCode("INVALID_CONFIG"),
    41: ErrorCode("NOT_CONTROLLER", retriable=True),
    42: ErrorCode("INVALID_REQUEST"),
    43: ErrorCode("UNSUPPORTED_FOR_MESSAGE_FORMAT"),
    44: ErrorCode("POLICY_VIOLATION"),
    45: ErrorCode("OUT_OF_ORDER_SEQUENCE_NUMBER"),
    46: ErrorCode("DUPLICATE_SEQUENCE_NUMBER"),
    47: ErrorCode("INVALID_PRODUCER_EPOCH"),
    48: ErrorCode("INVALID_TXN_STATE"),
    49: ErrorCode("INVALID_PRODUCER_ID_MAPPING"),
    50: ErrorCode("INVALID_TRANSACTION_TIMEOUT"),
    51: ErrorCode("CONCURRENT_TRANSACTIONS", retriable=True),
    52: ErrorCode("TRANSACTION_COORDINATOR_FENCED"),
    53: ErrorCode("TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    54: ErrorCode("SECURITY_DISABLED"),
    55: ErrorCode("OPERATION_NOT_ATTEMPTED"),
    56: ErrorCode("KAFKA_STORAGE_ERROR", retriable=True, refresh_metadata=True),
    57: ErrorCode("LOG_DIR_NOT_FOUND"),
    58: ErrorCode("SASL_AUTHENTICATION_FAILED"),
    59: ErrorCode("UNKNOWN_PRODUCER_ID"),
    60: ErrorCode("REASSIGNMENT_IN_PROGRESS"),
    61: ErrorCode("DELEGATION_TOKEN_AUTH_DISABLED"),
    62: ErrorCode("DELEGATION_TOKEN_NOT_FOUND"),
    63: ErrorCode("DELEGATION_TOKEN_OWNER_MISMATCH"),
    64: ErrorCode("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"),
    65: ErrorCode("DELEGATION_TOKEN_AUTHORIZATION_FAILED"),
    66: ErrorCode("DELEGATION_TOKEN_EXPIRED"),
    67: ErrorCode("INVALID_PRINCIPAL_TYPE"),
    68: ErrorCode("NON_EMPTY_GROUP"),
    69: ErrorCode("GROUP_ID_NOT_FOUND"),
    70: ErrorCode("FETCH_SESSION_ID_NOT_FOUND", retriable=True),
    71: ErrorCode("INVALID_FETCH_SESSION_EPOCH", retriable=True),
    72: ErrorCode("LISTENER_NOT_FOUND", retriable=True, refresh_metadata=True),
    73: ErrorCode("TOPIC_DELETION_DISABLED"),
    74: ErrorCode("FENCED_LEADER_EPOCH", retriable=True, refresh_metadata=True),
    75: ErrorCode("UNKNOWN_LEADER_EPOCH", retriable=True),
    76: ErrorCode("UNSUPPORTED_COMPRESSION_TYPE"),
    77: ErrorCode("STALE_BROKER_EPOCH"),
    78: ErrorCode("OFFSET_NOT_AVAILABLE", retriable=True),
    79: ErrorCode("MEMBER_ID_REQUIRED"),
    80: ErrorCode("PREFERRED_LEADER_NOT_AVAILABLE", retriable=True, refresh_metadata=True),
    81: ErrorCode("GROUP_MAX_SIZE_REACHED"),
    82: ErrorCode("FENCED_INSTANCE_ID"),
    83: ErrorCode("ELIGIBLE_LEADERS_NOT_AVAILABLE", retriable=True, refresh_metadata=True),
    84: ErrorCode("ELECTION_NOT_NEEDED", retriable=True, refresh_metadata=True),
    85: ErrorCode("NO_REASSIGNMENT_IN_PROGRESS"),
    86: ErrorCode("GROUP_SUBSCRIBED_TO_TOPIC"),
    87: ErrorCode("INVALID_RECORD"),
    88: ErrorCode("UNSTABLE_OFFSET_COMMIT", retriable=True),
    89: ErrorCode("THROTTLING_QUOTA_EXCEEDED", retriable=True),
    90: ErrorCode("PRODUCER_FENCED"),
    91: ErrorCode("RESOURCE_NOT_FOUND"),
    92: ErrorCode("DUPLICATE_RESOURCE"),
    93: ErrorCode("UNACCEPTABLE_CREDENTIAL"),
    94: ErrorCode("INCONSISTENT_VOTER_SET"),
    95: ErrorCode("INVALID_UPDATE_VERSION"),
    96: ErrorCode("FEATURE_UPDATE_FAILED"),
    97: ErrorCode("PRINCIPAL_DESERIALIZATION_FAILURE"),
    98: ErrorCode("SNAPSHOT_NOT_FOUND"),
    99: ErrorCode("POSITION_OUT_OF_RANGE"),
    100: ErrorCode("UNKNOWN_TOPIC_ID", retriable=True, refresh_metadata=True),
    101: ErrorCode("DUPLICATE_BROKER_REGISTRATION"),
    102: ErrorCode("BROKER_ID_NOT_REGISTERED"),
    103: ErrorCode("INCONSISTENT_TOPIC_ID", retriable=True, refresh_metadata=True),
    104: ErrorCode("INCONSISTENT_CLUSTER_ID"),
    105: ErrorCode("TRANSACTIONAL_ID_NOT_FOUND"),
    106: ErrorCode("FETCH_SESSION_TOPIC_ID_ERROR", retriable=True),
    107: ErrorCode("INELIGIBLE_REPLICA"),
    108: ErrorCode("NEW_LEADER_ELECTED"),
    109: ErrorCode("OFFSET_MOVED_TO_TIERED_STORAGE"),
    110: ErrorCode("FENCED_MEMBER_EPOCH"),
    111: ErrorCode("UNRELEASED_INSTANCE_ID"),
    112: ErrorCode("UNSUPPORTED_ASSIGNOR"),
    113: ErrorCode("STALE_MEMBER_EPOCH"),
    114: ErrorCode("MISMATCHED_ENDPOINT_TYPE"),
    115: ErrorCode("UNSUPPORTED_ENDPOINT_TYPE"),
    116: ErrorCode("UNKNOWN_CONTROLLER_ID"),
    117: ErrorCode("UNKNOWN_SUBSCRIPTION_ID"),
    118: ErrorCode("TELEMETRY_TOO_LARGE"),
    119: ErrorCode("INVALID_REGISTRATION"),
    120: ErrorCode("TRANSACTION_ABORTABLE"),
    121: ErrorCode("INVALID_RECORD_STATE"),
    122: ErrorCode("SHARE_SESSION_NOT_FOUND", retriable=True),
    123: ErrorCode("INVALID_SHARE_SESSION_EPOCH", retriable=True),
    124: ErrorCode("FENCED_STATE_EPOCH"),
    125: ErrorCode("INVALID_VOTER_KEY"),
    126: ErrorCode("DUPLICATE_VOTER"),
    127: ErrorCode("VOTER_NOT_FOUND"),
}


def error_code(code: int) -> ErrorCode:
    """The entry of `code`. One we do not know is named so and is not retriable, as in Kafka's own clients."""
    return ERROR_CODES.get(code) or ErrorCode("UNKNOWN_ERROR_CODE")


def broker_error(code: int, detail: str = "") -> BrokerError:
    """The exception for `code`; `detail` says who asked whom for what."""
    name, retriable, refresh_metadata = error_code(code)
    return BrokerError(code, name, detail, retriable=retriable, refresh_metadata=refresh_metadata)
