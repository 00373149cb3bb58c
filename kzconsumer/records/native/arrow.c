/* Arrow arrays over the memory of columns. Arrow releases each array on its own, in any thread. */

#include "arrow.h"

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

enum { UNKNOWN = -1, MOST_CHILDREN = 8 };

/* What one array keeps alive. */
struct node {
    struct columns *columns;
    void *own; /* memory of its own */
    const void *buffers[3];
    struct ArrowArray *children[MOST_CHILDREN];
    struct ArrowArray nested[]; /* its children, or its dictionary */
};

static void release_array(struct ArrowArray *array) {
    struct node *node = array->private_data;
    for (int64_t n = 0; n < array->n_children; n++)
        if (array->children[n]->release != NULL)
            array->children[n]->release(array->children[n]);
    if (array->dictionary != NULL && array->dictionary->release != NULL)
        array->dictionary->release(array->dictionary);
    release_columns(node->columns);
    free(node->own);
    free(node);
    array->release = NULL;
}

/* Make `array` one of `columns`, without buffers yet; `own` bytes of zeroed memory are its own. */
static struct node *make_array(struct ArrowArray *array, struct columns *columns, int64_t length, int64_t offset,
                               int64_t n_buffers, int64_t nested, size_t own) {
    struct node *node = calloc(1, sizeof *node + (size_t)nested * sizeof *node->nested);
    if (node == NULL)
        return NULL;
    if (own > 0 && (node->own = calloc(1, own)) == NULL) {
        free(node);
        return NULL;
    }
    for (int64_t n = 0; n < nested; n++)
        node->children[n] = &node->nested[n];
    node->columns = columns;
    share_columns(columns);
    *array = (struct ArrowArray){
        .length = length,
        .offset = offset,
        .n_buffers = n_buffers,
        .buffers = node->buffers,
        .children = node->children,
        .release = release_array,
        .private_data = node,
    };
    return node;
}

static bool make_numbers(struct ArrowArray *array, struct columns *columns, int64_t first, int64_t until,
                         const void *numbers) {
    struct node *node = make_array(array, columns, until - first, first, 2, 0, 0);
    if (node != NULL)
        node->buffers[1] = numbers;
    return node != NULL;
}

static bool make_topic(struct ArrowArray *array, struct columns *columns, int64_t rows, const char *topic,
                       int64_t size) {
    struct node *node = make_array(array, columns, rows, 0, 2, 1, (size_t)rows + 1);
    if (node == NULL)
        return false;
    node->buffers[1] = node->own; /* indices: all 0 */
    array->dictionary = &node->nested[0];
    struct node *names = make_array(array->dictionary, columns, 1, 0, 3, 0, 2 * sizeof(int32_t) + (size_t)size);
    if (names == NULL)
        return false;
    int32_t *ends = names->own;
    ends[1] = (int32_t)size;
    memcpy(ends + 2, topic, (size_t)size);
    names->buffers[1] = ends;
    names->buffers[2] = ends + 2;
    return true;
}

static bool make_partition(struct ArrowArray *array, struct columns *columns, int64_t rows, int32_t partition) {
    struct node *node = make_array(array, columns, rows, 0, 2, 0, (size_t)(rows + 1) * sizeof partition);
    if (node == NULL)
        return false;
    int32_t *partitions = node->own;
    for (int64_t row = 0; row < rows; row++)
        partitions[row] = partition;
    node->buffers[1] = partitions;
    return true;
}

static bool make_binary_array(struct ArrowArray *array, struct columns *columns, const struct binary *binary,
                              int64_t first, int64_t until) {
    static const int32_t none[2];
    struct node *node = make_array(array, columns, until - first, first, 3, 0, 0);
    if (node == NULL)
        return false;
    array->null_count = binary->nulls > 0 ? UNKNOWN : 0;
    node->buffers[0] = binary->nulls > 0 ? binary->validity : NULL;
    node->buffers[1] = binary->ends != NULL ? binary->ends : none;
    node->buffers[2] = binary->data != NULL ? (const void *)binary->data : none;
    return true;
}

static bool make_headers(struct ArrowArray *array, struct columns *columns, int64_t first, int64_t until) {
    bool any = columns->header_ends != NULL;
    size_t own = any ? 0 : (size_t)(until - first + 1) * sizeof(int32_t);
    struct node *lists = make_array(array, columns, until - first, any ? first : 0, 2, 1, own);
    if (lists == NULL)
        return false;
    lists->buffers[1] = any ? columns->header_ends : lists->own;
    struct node *pairs = make_array(&lists->nested[0], columns, columns->headers, 0, 1, 2, 0);
    if (pairs == NULL)
        return false;
    array->n_children = 1;
    if (!make_binary_array(&pairs->nested[0], columns, &columns->header_keys, 0, columns->headers))
        return false;
    lists->nested[0].n_children = 1;
    if (!make_binary_array(&pairs->nested[1], columns, &columns->header_values, 0, columns->headers))
        return false;
    lists->nested[0].n_children = 2;
    return true;
}

static bool make_batch(struct ArrowArray *batch, struct columns *columns, int64_t first, int64_t until,
                       const char *topic, int64_t topic_size, int32_t partition) {
    int64_t rows = until - first;
    struct node *node = make_array(batch, columns, rows, 0, 1, MOST_CHILDREN, 0);
    if (node == NULL)
        return false;
    batch->n_children = MOST_CHILDREN; /* those that are not made yet have no `release` */
    struct ArrowArray *column = node->nested;
    if (!make_topic(column++, columns, rows, topic, topic_size) ||
        !make_partition(column++, columns, rows, partition) ||
        !make_numbers(column++, columns, first, until, columns->offsets) ||
        !make_binary_array(column++, columns, &columns->keys, first, until) ||
        !make_binary_array(column++, columns, &columns->values, first, until) ||
        !make_numbers(column, columns, first, until, columns->timestamps))
        return false;
    if (columns->timestamp_validity != NULL) {
        column->null_count = UNKNOWN;
        column->buffers[0] = columns->timestamp_validity;
    }
    column++;
    return make_headers(column++, columns, first, until) &&
           make_numbers(column, columns, first, until, columns->timestamp_types);
}

static void free_capsule(PyObject *capsule) {
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release != NULL)
        array->release(array);
    free(array);
}

PyObject *arrow_array(struct columns *columns, int64_t first, int64_t until, const char *topic, int64_t topic_size,
                      int32_t partition) {
    struct ArrowArray *array = calloc(1, sizeof *array);
    if (array == NULL)
        return PyErr_NoMemory();
    PyObject *capsule = NULL;
    if (make_batch(array, columns, first, until, topic, topic_size, partition))
        capsule = PyCapsule_New(array, "arrow_array", free_capsule);
    else
        PyErr_NoMemory();
    if (capsule == NULL) {
        if (array->release != NULL)
            array->release(array);
        free(array);
    }
    return capsule;
}
