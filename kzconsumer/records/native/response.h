/* The record bytes of one partition in a fetch response, while a call works on them. */

#ifndef KZCONSUMER_RESPONSE_H
#define KZCONSUMER_RESPONSE_H

#include "objects.h"

struct response {
    PyObject *view; /* a memoryview of the bytes */
    Py_buffer bytes;
    const struct crc_tables *tables; /* NULL if no checksum is compared */
    struct batches batches;
    PyObject *reason;  /* the text of BAD_BODY */
    Py_buffer *bodies; /* decompressed ones */
    ptrdiff_t body_count;
    int64_t decompressed; /* bytes of them */
};

/* Find the batches of `records` and compare their checksums; those of magic 2 by the function `crc32c` of the package
   of that name, none at all if it is None. False with an exception; `close_response` is due in either case. */
bool open_response(struct response *response, PyObject *module, PyObject *records, PyObject *crc32c);

/* What is to be read of a response. */
struct plan {
    ptrdiff_t rows;  /* batches to read */
    int64_t records; /* most records they can hold */
    int64_t size;    /* bytes of their bodies */
    int64_t fields;  /* most bytes of their keys, values and headers */
    bool compressed; /* there are compressed ones among them */
};

/* Set `skip` of control batches and of those wholly below `start`, which count for nothing. The rows end before the
   one whose body would take the sum beyond `limit`, unless it is the first that counts. */
struct plan plan_reading(struct batches *batches, int64_t start, int64_t limit);

/* Decompress what is wanted of the response. The batches end early, without fault, before the one that would take all
   bodies together beyond `limit`, but not before the first that is wanted. False with an exception. */
bool open_bodies(struct response *response, int64_t start, int64_t limit, PyObject *decompress, struct plan *plan);

/* The text of the response's fault, or None; a new reference. */
PyObject *fault_of(const struct response *response);

void close_response(struct response *response);

#endif
