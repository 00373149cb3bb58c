/* Linked to the decoder that libFuzzer runs: half of its mutations are made by Python (`guided.py`). */

#include <stddef.h>
#include <stdint.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

typedef size_t (*mutator)(uint8_t *data, size_t size, size_t most, unsigned seed);

static mutator chosen;

__attribute__((visibility("default"))) void choose_mutator(mutator one) { chosen = one; }

__attribute__((visibility("default"))) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most,
                                                                      unsigned seed) {
    size_t changed = chosen != NULL && seed % 2 ? chosen(data, size, most, seed) : 0;
    return changed ? changed : LLVMFuzzerMutate(data, size, most);
}
