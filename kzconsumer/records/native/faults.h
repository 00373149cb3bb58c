/* Why a batch cannot be used. */

#ifndef KZCONSUMER_FAULTS_H
#define KZCONSUMER_FAULTS_H

enum fault {
    OK = 0,
    NO_MEMORY,
    BAD_SIZE,
    BAD_CRC,
    BAD_INNER_CRC,
    BAD_MAGIC,
    BAD_VARINT,
    BAD_RECORD,
    BAD_FIELD,
    BAD_COUNT,
    BAD_HEADER,
    BAD_OFFSET,
    BAD_TAIL,
    BAD_NESTING,
    BAD_MARKER,
    NO_MESSAGE,
    BAD_BODY, /* it cannot be decompressed: the decompressor has a text of its own */
    FAULTS,
};

/* What a fault says about its batch. */
static inline const char *fault_text(enum fault fault) {
    static const char *const texts[FAULTS] = {
        [BAD_SIZE] = "its size field is smaller than its header",
        [BAD_CRC] = "its checksum does not match",
        [BAD_INNER_CRC] = "the checksum of a message inside does not match",
        [BAD_MAGIC] = "its magic byte is unknown or does not fit",
        [BAD_VARINT] = "a variable-length number is overlong or cut off",
        [BAD_RECORD] = "a record does not fit its length",
        [BAD_FIELD] = "a key or value does not fit its record",
        [BAD_COUNT] = "its record count does not fit its size",
        [BAD_HEADER] = "a record header does not fit its record",
        [BAD_OFFSET] = "an offset is negative or outside the batch",
        [BAD_TAIL] = "bytes are left after its last record",
        [BAD_NESTING] = "a compressed message holds a compressed message",
        [BAD_MARKER] = "its transaction marker cannot be read",
        [NO_MESSAGE] = "a compressed message holds no message",
    };
    return texts[fault];
}

#endif
