/* fuzz.h: what the fuzz targets share.
 *
 * A target is a file fuzz_<name>.c with one entry point. `make fuzz` runs it under libFuzzer;
 * test_fuzz_corpus.c links it under the name of its file and replays corpus/<name>/. */
#ifndef ATTN_FUZZ_H
#define ATTN_FUZZ_H

#include "engine/base/base.h"

#include <string.h>

/* Takes any bytes; aborts when a claim does not hold. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One line that says something, whatever the file's names hold: no control characters, those of
 * Unicode (U+0080 to U+009F) included. */
static inline void fuzz_check_error(const attn_error *err)
{
    size_t len = strnlen(err->message, sizeof err->message);
    ATTN_ASSERT(err->status != ATTN_OK && len > 0 && len < sizeof err->message);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)err->message[i];
        unsigned char next = (unsigned char)err->message[i + 1];
        ATTN_ASSERT(c >= ' ' && c != 0x7f && !(c == 0xc2 && next >= 0x80 && next < 0xa0));
    }
}

#endif
