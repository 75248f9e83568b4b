/* builtin.h: the models compiled into the program (builtin.S holds their files). */
#ifndef ATTN_BUILTIN_H
#define ATTN_BUILTIN_H

#include "engine/model/model.h"

extern const char attn_stories_config[], attn_stories_config_end[];
extern const char attn_stories_tensors[], attn_stories_tensors_end[];
extern const char attn_stories_tokenizer[], attn_stories_tokenizer_end[];
extern const char attn_seed_config[], attn_seed_config_end[];
extern const char attn_seed_tensors[], attn_seed_tensors_end[];

typedef struct attn_builtin {
    const char *name;
    const char *config, *config_end;
    const char *tensors, *tensors_end;
    const char *tokenizer, *tokenizer_end; /* NULL: it has none */
} attn_builtin;

static const attn_builtin attn_builtin_models[ATTN_BUILTINS] = {
    [ATTN_BUILTIN_STORIES] = {"stories", attn_stories_config, attn_stories_config_end,
                              attn_stories_tensors, attn_stories_tensors_end,
                              attn_stories_tokenizer, attn_stories_tokenizer_end},
    [ATTN_BUILTIN_SEED] = {"seed-attention", attn_seed_config, attn_seed_config_end,
                           attn_seed_tensors, attn_seed_tensors_end, NULL, NULL},
};

#endif
