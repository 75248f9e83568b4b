/* Every allocation fails once, alone and with all that follow it: an error or the right answer comes
 * of it, nothing leaks, and the next request is served as if nothing had been. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/torture/failing.h"
#include "tests/unit/engine_run.h"
#include "tests/unit/tokenizer_run.h"

#define HIDDEN 16 /* of seed-attention */
#define N_ROWS 40
#define VOCAB 384

/* ------------------------------------------------------------------------- what is tortured */

/* From now on the n-th allocation fails, or with n = 0 the first from a new place. */
static void arm(uint64_t n, bool all)
{
    failing_control->fail_all = all;
    failing_control->n_failed = failing_control->n_tried = 0;
    failing_control->fail_at = n;
    failing_control->fail_new = n == 0;
}

static uint64_t disarm(void)
{
    failing_control->fail_at = failing_control->fail_new = 0;
    failing_control->fail_all = 0;
    return failing_control->n_failed;
}

/* The threads of the engine may still hold the last reference to something. */
static void check_live(int64_t before, const char *what, uint64_t n)
{
    for (int i = 0; failing_control->n_live != before; i++) {
        if (i == 20000)
            fail_msg("%s, allocation %u: %+lld blocks left", what, (unsigned)n,
                     (long long)(failing_control->n_live - before));
        usleep(100);
    }
}

/* A folder of a small language model with a tokenizer, made anew for the test. */
static void make_model(char *dir, size_t size, const char *tokenizer)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"vocab_size\":384,\"hidden_size\":32,\"intermediate_size\":48,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
        "\"bos_token_id\":1,\"eos_token_id\":2,\"tie_word_embeddings\":false,"
        "\"torch_dtype\":\"bfloat16\"}";
    char path[512], from[512], here[256];
    snprintf(dir, size, "/tmp/attnd-torture-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(config, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_non_null(getcwd(here, sizeof here));
    snprintf(from, sizeof from, "%s/" FIXTURES "%s", here, tokenizer);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(symlink(from, path), 0);
}

static void remove_model(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
}

static attn_engine *open_engine(const char *dir, attn_error *err)
{
    attn_model_source source = {.name = "text", .dir = dir};
    attn_options options = {
        .models = &source,
        .n_models = dir != NULL,
        .has_random_seed = true,
        .random_seed = 1,
        .n_threads = 2,
        .kv_memory_bytes = 4u << 20,
        .max_sessions = 100,
        .queue = 100,
        .stall_timeout_ms = 60000,
        .kernels = "auto",
    };
    return attn_engine_open(&options, err);
}

/* ------------------------------------------------------------------- running without memory */

/* What a deed told: whether it did, and a hash of all that it said. */
typedef struct told {
    attn_status status;
    uint64_t hash;
    sem_t done;
} told;

static void tell(told *t, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        t->hash = (t->hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
}

static void on_step(void *ctx, const attn_step *step)
{
    told *t = ctx;
    tell(t, &step->length, sizeof step->length);
    tell(t, &step->token, sizeof step->token);
    if (step->output_size > 0)
        tell(t, step->output, step->output_size * sizeof *step->output);
    if (step->text_len > 0)
        tell(t, step->text, step->text_len);
    for (size_t i = 0; i < step->n_logprobs; i++)
        tell(t, &step->logprobs[i].logprob, sizeof step->logprobs[i].logprob);
}

static void on_done(void *ctx)
{
    told *t = ctx;
    sem_post(&t->done);
}

static void tell_result(told *t, const attn_result *r)
{
    tell(t, &r->session.length, sizeof r->session.length);
    if (r->n_outputs > 0)
        tell(t, r->outputs, r->n_outputs * r->output_size * sizeof *r->outputs);
    if (r->n_tokens > 0)
        tell(t, r->tokens, r->n_tokens * sizeof *r->tokens);
    if (r->n_logits > 0)
        tell(t, r->logits, r->n_logits * sizeof *r->logits);
    for (size_t i = 0; i < r->n_next; i++)
        tell(t, &r->next[i].token, sizeof r->next[i].token);
    if (r->text_len > 0)
        tell(t, r->text, r->text_len);
    tell(t, &r->reason, sizeof r->reason);
    tell(t, &r->verify_bit_identical, sizeof r->verify_bit_identical);
}

static void run_request(attn_engine *engine, const attn_request *request, told *t)
{
    attn_sink sink = {.ctx = t, .step = on_step, .done = on_done};
    attn_job *job;
    attn_error err;
    t->status = attn_engine_submit(engine, request, &sink, &job, &err);
    if (t->status != ATTN_OK)
        return;
    while (sem_wait(&t->done) != 0)
        ;
    const attn_result *r = attn_job_result(job);
    t->status = r->reason == ATTN_REASON_ERROR ? r->error.status : ATTN_OK;
    tell_result(t, r);
    attn_job_release(job);
}

/* --------------------------------------------------------------------------------- the deeds */

static const float *rows(void)
{
    static float values[N_ROWS * HIDDEN];
    for (size_t i = 0; i < N_ROWS * HIDDEN; i++)
        values[i] = (float)(int)(i * 7 % 23) / 11.0f - 1.0f;
    return values;
}

static attn_request prefill_of(const char *session, size_t n, attn_output output)
{
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = session;
    r.model = "seed-attention";
    r.inputs = rows();
    r.n_inputs = n;
    r.input_size = HIDDEN;
    r.output = output;
    return r;
}

static void prefill_all(attn_engine *engine, told *t)
{
    attn_request r = prefill_of("a", N_ROWS, ATTN_OUTPUT_ALL);
    run_request(engine, &r, t);
}

static void prefill_unnamed(attn_engine *engine, told *t)
{
    attn_request r = prefill_of(NULL, 3, ATTN_OUTPUT_LAST);
    r.has_ttl = true;
    r.ttl_s = 1000;
    run_request(engine, &r, t);
}

static void append(attn_engine *engine, told *t)
{
    prefill_all(engine, t);
}

static void decode_rows(attn_engine *engine, told *t)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = "a";
    r.inputs = rows();
    r.n_inputs = 20;
    r.input_size = HIDDEN;
    run_request(engine, &r, t);
}

static void decode_steps(attn_engine *engine, told *t)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = "a";
    r.steps = 30;
    run_request(engine, &r, t);
}

static void truncate_and_replay(attn_engine *engine, told *t)
{
    attn_session_info info;
    attn_error err;
    t->status = attn_session_truncate(engine, "a", 7, UINT64_MAX, &info, &err);
    if (t->status == ATTN_OK)
        decode_steps(engine, t);
}

static void verify(attn_engine *engine, told *t)
{
    attn_request r = attn_request_init(ATTN_JOB_VERIFY);
    r.session = "a";
    run_request(engine, &r, t);
}

static void fork_session(attn_engine *engine, told *t)
{
    attn_session_info info;
    attn_error err;
    t->status = attn_session_fork(engine, "a", "b", 21, UINT64_MAX, &info, &err);
    if (t->status == ATTN_OK)
        tell(t, &info.kv.n_pages, sizeof info.kv.n_pages);
}

/* Takes a fork's page, which is shared, back into use. */
static void fork_and_diverge(attn_engine *engine, told *t)
{
    attn_session_info info;
    attn_error err;
    t->status = attn_session_fork(engine, "a", "b", 32, UINT64_MAX, &info, &err);
    if (t->status == ATTN_OK)
        t->status = attn_session_truncate(engine, "b", 20, UINT64_MAX, &info, &err);
    attn_request r = prefill_of("b", 20, ATTN_OUTPUT_LAST);
    if (t->status == ATTN_OK)
        run_request(engine, &r, t);
}

static void text_prefill(attn_engine *engine, told *t)
{
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = "a";
    r.model = "text";
    r.text = "the rain in the thin lane \xc3\xa9 \xe6\x97\xa5 1234";
    r.text_len = strlen(r.text);
    r.logits = true;
    r.output = ATTN_OUTPUT_ALL;
    run_request(engine, &r, t);
}

static void text_decode(attn_engine *engine, told *t)
{
    static const char *const stop[] = {"there is no such text", "or such"};
    static const uint32_t stop_ids[] = {VOCAB - 1, 5};
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = "a";
    r.steps = 60;
    r.sampling.temperature = 2.0f;
    r.sampling.top_k = 200;
    r.sampling.top_p = 0.9f;
    r.sampling.repetition_penalty = 1.5f;
    r.sampling.has_seed = true;
    r.sampling.seed = 3;
    r.sampling.ignore_eos = true;
    r.sampling.n_logprobs = 3;
    r.sampling.stop = stop;
    r.sampling.n_stop = 2;
    r.sampling.stop_token_ids = stop_ids;
    r.sampling.n_stop_token_ids = 2;
    run_request(engine, &r, t);
}

static void tokens_decode(attn_engine *engine, told *t)
{
    static const uint32_t tokens[] = {7, 8, 9, 10, 11, 200, 201};
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = "a";
    r.tokens = tokens;
    r.n_tokens = sizeof tokens / sizeof *tokens;
    run_request(engine, &r, t);
}

static void read_tokens(attn_engine *engine, told *t)
{
    uint32_t *tokens;
    size_t n, text_len;
    char *text;
    attn_error err;
    t->status = attn_session_tokens(engine, "a", &tokens, &n, &text, &text_len, &err);
    if (t->status != ATTN_OK)
        return;
    tell(t, tokens, n * sizeof *tokens);
    tell(t, text, text_len);
    attn_buffer_free(tokens);
    attn_buffer_free(text);
}

static void tokenize(attn_engine *engine, told *t)
{
    static const char text[] = "A long \xe6\x97\xa5 text, 12 of them; the the the  \n";
    uint32_t *tokens;
    size_t n, len;
    char *back;
    attn_error err;
    t->status = attn_tokenize(engine, "text", text, sizeof text - 1, true, &tokens, &n, &err);
    if (t->status != ATTN_OK)
        return;
    tell(t, tokens, n * sizeof *tokens);
    t->status = attn_detokenize(engine, "text", tokens, n, &back, &len, &err);
    attn_buffer_free(tokens);
    if (t->status != ATTN_OK)
        return;
    tell(t, back, len);
    attn_buffer_free(back);
}

static void look(attn_engine *engine, told *t)
{
    attn_session_info infos[4];
    attn_error err;
    bool more;
    t->hash += attn_session_list(engine, NULL, 4, infos, &more);
    t->status = attn_session_get(engine, "a", infos, &err);
    if (t->status == ATTN_OK)
        t->status = attn_session_cancel(engine, "a", infos, &err);
    if (t->status == ATTN_OK)
        t->status = attn_session_delete(engine, "a", &err);
}

/* What is done without failures, and then what is to fail. */
static const struct deed {
    const char *name;
    void (*before)(attn_engine *engine, told *t);
    void (*act)(attn_engine *engine, told *t);
} deeds[] = {
    {"prefill", NULL, prefill_all},
    {"prefill of an unnamed session", NULL, prefill_unnamed},
    {"append", prefill_all, append},
    {"decode of rows", prefill_all, decode_rows},
    {"decode of steps", prefill_all, decode_steps},
    {"truncate and replay", prefill_all, truncate_and_replay},
    {"verify", prefill_all, verify},
    {"fork", prefill_all, fork_session},
    {"fork that diverges", prefill_all, fork_and_diverge},
    {"prefill of text", NULL, text_prefill},
    {"sampling", text_prefill, text_decode},
    {"decode of tokens", text_prefill, tokens_decode},
    {"verify of text", text_prefill, verify},
    {"tokens", text_prefill, read_tokens},
    {"tokenize", NULL, tokenize},
    {"look", prefill_all, look},
};

static void check_sessions(attn_engine *engine, const char *name)
{
    attn_session_info infos[8];
    attn_error err;
    bool more;
    size_t n = attn_session_list(engine, NULL, 8, infos, &more);
    for (size_t i = 0; i < n; i++) {
        attn_request r = attn_request_init(ATTN_JOB_VERIFY);
        run v;
        r.session = infos[i].id;
        assert_int_equal(infos[i].kv.reserved_bytes, 0);
        v = run_job(engine, &r);
        assert_int_equal(v.submitted, ATTN_OK);
        if (!v.bit_identical)
            fail_msg("%s: session %s does not verify", name, infos[i].id);
        assert_int_equal(attn_session_delete(engine, infos[i].id, &err), ATTN_OK);
    }
}

/* Does the deed with the n-th allocation failing (0: none). False when that was one too many. */
static bool do_deed(attn_engine *engine, const struct deed *deed, uint64_t n, bool all,
                    uint64_t *hash)
{
    int64_t live = failing_control->n_live;
    attn_totals before, after;
    attn_engine_totals(engine, &before);
    told t = {0};
    sem_init(&t.done, 0, 0);
    if (deed->before != NULL)
        deed->before(engine, &t);
    assert_int_equal(t.status, ATTN_OK);
    t.hash = 0;
    if (n > 0)
        arm(n, all);
    deed->act(engine, &t);
    uint64_t failed = disarm();
    if (t.status != ATTN_OK && (n == 0 || t.status != ATTN_E_NO_MEMORY))
        fail_msg("%s, allocation %u: status %d", deed->name, (unsigned)n, (int)t.status);
    if (n == 0)
        *hash = t.hash;
    else if (t.status == ATTN_OK && t.hash != *hash)
        fail_msg("%s, allocation %u: another answer", deed->name, (unsigned)n);
    check_sessions(engine, deed->name);
    attn_engine_totals(engine, &after);
    assert_memory_equal(&before, &after, sizeof before);
    check_live(live, deed->name, n);
    sem_destroy(&t.done);
    return n == 0 || failed > 0;
}

static void torture_deeds(bool all)
{
    char dir[64];
    attn_error err;
    make_model(dir, sizeof dir, "features/llama2.json");
    attn_engine *engine = open_engine(dir, &err);
    if (engine == NULL)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        uint64_t n = 0, hash = 0;
        while (do_deed(engine, &deeds[i], n, all, &hash))
            n++;
        do_deed(engine, &deeds[i], UINT64_MAX, false, &hash); /* as if nothing had been */
        print_message("%s: %u allocations\n", deeds[i].name, (unsigned)n - 1);
    }
    attn_engine_close(engine);
    remove_model(dir);
}

static void test_one_allocation_fails(void **state)
{
    (void)state;
    torture_deeds(false);
}

static void test_all_fail_from_one_on(void **state)
{
    (void)state;
    torture_deeds(true);
}

/* ------------------------------------------------------------------------------------- opening */

static void torture_open(const char *dir, bool all)
{
    attn_error err;
    unsigned n = 0;
    failing_forget_stacks();
    attn_engine_close(open_engine(dir, &err)); /* libc keeps the stacks of threads that ended */
    for (uint64_t failed = 1; failed > 0; n++) {
        int64_t live = failing_control->n_live;
        arm(0, all);
        attn_engine *engine = open_engine(dir, &err);
        failed = disarm();
        if (engine == NULL && (failed == 0 || err.status != ATTN_E_NO_MEMORY))
            fail_msg("place %u: %s", n, err.message);
        attn_engine_close(engine);
        check_live(live, "open", n);
    }
    print_message("open: %u places\n", n - 1);
}

static void test_open(void **state)
{
    (void)state;
    char dir[64];
    make_model(dir, sizeof dir, "features/llama2.json");
    torture_open(dir, false);
    torture_open(dir, true);
    remove_model(dir);
}

/* Opens a tokenizer and takes a text there and back. */
static attn_status use_tokenizer(const char *path)
{
    static const char text[] = "I'm here,  \xc3\xa9\xe6\x97\xa5<s> 12345\n\n  end";
    attn_error err;
    attn_ids ids = {0};
    attn_text back = {0};
    attn_tokenizer *tokenizer = attn_tokenizer_open(path, &err);
    if (tokenizer == NULL)
        return err.status;
    attn_status status =
        attn_tokenizer_encode(tokenizer, text, sizeof text - 1, true, true, &ids, &err);
    if (status == ATTN_OK)
        status = attn_tokenizer_decode(tokenizer, ids.data, ids.n, false, &back, &err);
    attn_ids_free(&ids);
    attn_text_free(&back);
    attn_tokenizer_close(tokenizer);
    return status;
}

static void test_tokenizers(void **state)
{
    (void)state;
    static const char *const names[] = {"added",     "gemma", "gpt2", "llama3", "metaspace-always",
                                        "many-steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        unsigned n = 0;
        snprintf(path, sizeof path, FIXTURES "features/%s.json", names[i]);
        failing_forget_stacks();
        for (uint64_t failed = 1; failed > 0; n++) {
            int64_t live = failing_control->n_live;
            arm(0, false);
            attn_status status = use_tokenizer(path);
            failed = disarm();
            if (status != ATTN_OK && (failed == 0 || status != ATTN_E_NO_MEMORY))
                fail_msg("%s, place %u: status %d", names[i], n, (int)status);
            check_live(live, names[i], n);
        }
        print_message("%s: %u places\n", names[i], n - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_allocation_fails),
        cmocka_unit_test(test_all_fail_from_one_on),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_tokenizers),
    };
    return cmocka_run_group_tests_name("torture", tests, NULL, NULL);
}
