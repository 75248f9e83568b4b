/* model.h: the model under load, as GET /models/{name} describes it. */
#ifndef LOAD_MODEL_H
#define LOAD_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/http.h"
#include "clients/load/options.h"

typedef struct load_model {
    char name[80], type[32], kernels[32], weights[32];
    bool is_language_model, asks_output; /* asks_output: a prefill returns output rows by default */
    uint64_t hidden_size, vocab_size, n_layers, max_positions;
    uint64_t kv_bytes, input_bytes; /* a position, as these options have the server store them */
    uint64_t page_positions, max_body_bytes, numerics, threads;
} load_model;

/* Asks the server. Errors: false, and one line in `err`. */
bool load_model_get(load_model *m, load_http *http, const load_options *o, char *err,
                    size_t err_size);

/* What `length` positions cost: pages, their cache and their kept inputs. */
uint64_t load_model_pages(const load_model *m, uint64_t length);
uint64_t load_model_page_kv(const load_model *m);
uint64_t load_model_page_inputs(const load_model *m);

#endif
