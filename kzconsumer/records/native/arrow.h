/* Columns handed to Arrow by its C data interface (https://arrow.apache.org/docs/format/CDataInterface.html). */

#ifndef KZCONSUMER_ARROW_H
#define KZCONSUMER_ARROW_H

#include "columns.h"
#include "python_api.h"

/* A capsule "arrow_array" of the rows `first <= row < until` as a record batch of `kzconsumer.records.columns.SCHEMA`.
   Nothing of the records is copied. NULL with an exception without memory. */
PyObject *arrow_array(struct columns *columns, int64_t first, int64_t until, const char *topic, int64_t topic_size,
                      int32_t partition);

#endif
