/* builtin.S: the files of the built-in models, assembled from the repository's root. */
    .section .rodata

    .macro embed symbol, path
    .balign 64
    .global \symbol
    .global \symbol\()_end
\symbol:
    .incbin "\path"
\symbol\()_end:
    .byte 0
    .endm

    embed attn_stories_config, "engine/models/stories/config.json"
    embed attn_stories_tensors, "engine/models/stories/model.safetensors"
    embed attn_stories_tokenizer, "engine/models/stories/tokenizer.json"
    embed attn_seed_config, "engine/models/seed-attention/config.json"
    embed attn_seed_tensors, "engine/models/seed-attention/model.safetensors"

    .section .note.GNU-stack, "", @progbits
