/* body.h: request bodies, and the inputs that sessions are fed.
 *
 * Inputs follow from a key alone: the i-th number of a row, or the i-th token, is made from the
 * stream of the key (random.h). Numbers of rows have four decimals, so that their text is short.
 */
#ifndef LOAD_BODY_H
#define LOAD_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "clients/load/model.h"
#include "clients/load/options.h"
#include "clients/load/text.h"

/* Begins a prefill; one of the next two for each position; ends it. `create` adds the options of a
 * new session. `output` NULL: as the options say. */
void load_body_open(load_text *t, const load_model *m, const load_options *o, const char *session,
                    uint64_t if_length, bool create);
void load_body_input(load_text *t, const load_model *m, uint64_t key, uint64_t index);
void load_body_row(load_text *t, const float *row, uint64_t hidden_size);
void load_body_token(load_text *t, uint32_t token);
void load_body_close(load_text *t, const load_options *o, const char *output);

/* A whole prefill of the first n inputs of `key`. */
void load_body_prefill(load_text *t, const load_model *m, const load_options *o,
                       const char *session, uint64_t if_length, uint64_t key, uint64_t n);
/* A streamed decode; the seed of its draws comes from `key`. */
void load_body_decode(load_text *t, const load_model *m, const load_options *o, const char *session,
                      uint64_t if_length, uint64_t key, uint64_t steps);
/* The token that load_body_input makes. */
uint32_t load_body_make_token(const load_model *m, uint64_t key, uint64_t index);

#endif
