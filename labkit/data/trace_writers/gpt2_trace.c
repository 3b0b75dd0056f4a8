/* A complete GPT-2 in C that writes a labkit trace: every stage of the forward pass, in one safetensors file.
 *
 *     cc -O2 -o gpt2_trace gpt2_trace.c -lm
 *     ./gpt2_trace FOLDER OUT.safetensors 1025 363 258 1901
 *     labkit lint-trace OUT.safetensors --model FOLDER
 *     labkit verify FOLDER --trace OUT.safetensors
 *
 * FOLDER holds config.json and a model.safetensors of F32 tensors. One row, gelu_new, tied head, little-endian host.
 * The first part is the trace writer, to be copied into any engine: trace_add() at each stage, trace_write() at the
 * end. The second part is the engine.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *name) {
    fprintf(stderr, "gpt2_trace: %s: %s\n", name, what);
    exit(2);
}

static void *take(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("out of memory", "calloc");
    return memory;
}

/* ---- the trace writer ------------------------------------------------------------------------------------------ */

enum { MAX_TAPS = 4096 };

typedef struct {
    char name[64];
    const char *dtype; /* "F32" or "I64" */
    long shape[4];
    int axes;
    size_t nbytes;
    void *data; /* a copy: the engine's buffer may be used again */
} Tap;

static Tap taps[MAX_TAPS];
static int n_taps;

static void trace_add(const char *name, const char *dtype, const void *data, int axes, const long *shape) {
    if (n_taps == MAX_TAPS) die("too many taps", name);
    Tap *tap = &taps[n_taps++];
    snprintf(tap->name, sizeof tap->name, "%s", name);
    tap->dtype = dtype;
    tap->axes = axes;
    tap->nbytes = strcmp(dtype, "I64") ? 4 : 8;
    for (int i = 0; i < axes; i++) tap->nbytes *= (size_t)(tap->shape[i] = shape[i]);
    tap->data = take(tap->nbytes, 1);
    memcpy(tap->data, data, tap->nbytes);
}

/* JSON text of a string: quotes, backslashes and control characters escaped. */
static void put_string(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') fprintf(out, "\\%c", *c);
        else if (*c < 0x20) fprintf(out, "\\u%04x", *c);
        else fputc(*c, out);
    }
    fputc('"', out);
}

/* metadata: key, value, key, value, ..., NULL. The format: 8 bytes of header length, the header, the tensors' bytes. */
static void trace_write(const char *path, const char *const *metadata) {
    FILE *out = fopen(path, "wb");
    if (!out) die("cannot be written", path);
    uint64_t length = 0, offset = 0;
    fwrite(&length, 8, 1, out); /* filled in below */
    fputs("{\"__metadata__\":{", out);
    for (int i = 0; metadata[i]; i += 2) {
        if (i) fputc(',', out);
        put_string(out, metadata[i]);
        fputc(':', out);
        put_string(out, metadata[i + 1]);
    }
    fputc('}', out);
    for (int i = 0; i < n_taps; i++) {
        fputc(',', out);
        put_string(out, taps[i].name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", taps[i].dtype);
        for (int a = 0; a < taps[i].axes; a++) fprintf(out, "%s%ld", a ? "," : "", taps[i].shape[a]);
        fprintf(out, "],\"data_offsets\":[%llu,", (unsigned long long)offset);
        fprintf(out, "%llu]}", (unsigned long long)(offset += taps[i].nbytes));
    }
    fputc('}', out);
    while (ftell(out) % 8) fputc(' ', out); /* so that the tensors are aligned */
    length = (uint64_t)ftell(out) - 8;
    for (int i = 0; i < n_taps; i++) fwrite(taps[i].data, 1, taps[i].nbytes, out);
    if (fseek(out, 0, SEEK_SET) || fwrite(&length, 8, 1, out) != 1 || ferror(out) || fclose(out))
        die("writing failed", path);
}

/* ---- reading a checkpoint ---------------------------------------------------------------------------------------- */

static char *read_file(const char *folder, const char *name, size_t *nbytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = fopen(path, "rb");
    if (!in) die("cannot be read", path);
    fseek(in, 0, SEEK_END);
    *nbytes = (size_t)ftell(in);
    rewind(in);
    char *data = take(*nbytes + 1, 1);
    if (fread(data, 1, *nbytes, in) != *nbytes) die("cannot be read", path);
    fclose(in);
    return data;
}

/* The number under a key of config.json; `absent` where it is null or not there. */
static double setting(const char *config, const char *key, double absent) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = strstr(config, quoted);
    if (!at || !(at = strchr(at, ':'))) return absent;
    at += 1 + strspn(at + 1, " \t\n\r");
    return strncmp(at, "null", 4) ? strtod(at, NULL) : absent;
}

static const char *header;      /* of model.safetensors, zero-terminated */
static const char *data_section;

/* The F32 tensor of a name, with or without the wrapper's prefix; safetensors headers hold no spaces. */
static const float *parameter(const char *name) {
    const char *prefixes[] = {"", "transformer."};
    for (int i = 0; i < 2; i++) {
        char key[128];
        snprintf(key, sizeof key, "\"%s%s\":{", prefixes[i], name);
        const char *at = strstr(header, key);
        if (!at) continue;
        const char *end = strchr(at, '}');
        const char *dtype = strstr(at, "\"dtype\":\"F32\""), *offsets = strstr(at, "\"data_offsets\":[");
        if (!dtype || dtype > end || !offsets || offsets > end) die("not an F32 tensor", name);
        return (const float *)(data_section + strtoull(offsets + 16, NULL, 10));
    }
    die("no such tensor", name);
    return NULL;
}

/* ---- the engine ---------------------------------------------------------------------------------------------------- */

static long T, C, H, D, F, V; /* pos, n_embd, head, head_dim, n_inner, vocab */
static float epsilon;

static void tap3(const char *name, const float *x, long width) {
    trace_add(name, "F32", x, 3, (long[]){1, T, width});
}

static const float *of_block(int block, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "h.%d.%s", block, name);
    return parameter(full);
}

/* y[t] = x[t] @ weight + bias, weight stored [in, out] as Conv1D has it. */
static void product(float *y, const float *x, const float *weight, const float *bias, long in, long out) {
    for (long t = 0; t < T; t++) {
        memcpy(y + t * out, bias, (size_t)out * sizeof *y);
        for (long i = 0; i < in; i++)
            for (long j = 0; j < out; j++) y[t * out + j] += x[t * in + i] * weight[i * out + j];
    }
}

static void layer_norm(float *y, const float *x, const float *weight, const float *bias) {
    for (long t = 0; t < T; t++, x += C, y += C) {
        float mean = 0, variance = 0;
        for (long i = 0; i < C; i++) mean += x[i] / (float)C;
        for (long i = 0; i < C; i++) variance += (x[i] - mean) * (x[i] - mean) / (float)C;
        float scale = 1 / sqrtf(variance + epsilon);
        for (long i = 0; i < C; i++) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
}

/* One part of the packed c_attn output as [head, pos, head_dim]. */
static void split_heads(float *y, const float *packed, int part) {
    for (long h = 0; h < H; h++)
        for (long t = 0; t < T; t++)
            memcpy(y + (h * T + t) * D, packed + t * 3 * C + part * C + h * D, (size_t)D * sizeof *y);
}

static void attention(float *out, const float *x, int block) {
    char name[64];
    float *packed = take((size_t)(T * 3 * C), sizeof(float)), *z = take((size_t)(T * C), sizeof(float));
    float *scores = take((size_t)(H * T * T), sizeof(float)), *pattern = take((size_t)(H * T * T), sizeof(float));
    float *merged = take((size_t)(T * C), sizeof(float)), *qkv[3];
    product(packed, x, of_block(block, "attn.c_attn.weight"), of_block(block, "attn.c_attn.bias"), C, 3 * C);
    for (int part = 0; part < 3; part++) {
        split_heads(qkv[part] = take((size_t)(T * C), sizeof(float)), packed, part);
        snprintf(name, sizeof name, "h.%d.attn.%c", block, "qkv"[part]);
        trace_add(name, "F32", qkv[part], 4, (long[]){1, H, T, D});
    }
    for (long h = 0; h < H; h++)
        for (long i = 0; i < T; i++) {
            float *score = scores + (h * T + i) * T, *row = pattern + (h * T + i) * T, largest = -INFINITY, sum = 0;
            for (long j = 0; j < T; j++) {
                for (long d = 0; d < D; d++) score[j] += qkv[0][(h * T + i) * D + d] * qkv[1][(h * T + j) * D + d];
                score[j] /= sqrtf((float)D);
                if (j <= i && score[j] > largest) largest = score[j];
            }
            for (long j = 0; j <= i; j++) sum += row[j] = expf(score[j] - largest);
            for (long j = 0; j <= i; j++) row[j] /= sum;
            for (long j = 0; j <= i; j++)
                for (long d = 0; d < D; d++) z[(h * T + i) * D + d] += row[j] * qkv[2][(h * T + j) * D + d];
            memcpy(merged + i * C + h * D, z + (h * T + i) * D, (size_t)D * sizeof *z);
        }
    snprintf(name, sizeof name, "h.%d.attn.scores", block);
    trace_add(name, "F32", scores, 4, (long[]){1, H, T, T});
    snprintf(name, sizeof name, "h.%d.attn.pattern", block);
    trace_add(name, "F32", pattern, 4, (long[]){1, H, T, T});
    snprintf(name, sizeof name, "h.%d.attn.z", block);
    trace_add(name, "F32", z, 4, (long[]){1, H, T, D});
    product(out, merged, of_block(block, "attn.c_proj.weight"), of_block(block, "attn.c_proj.bias"), C, C);
    snprintf(name, sizeof name, "h.%d.attn.out", block);
    tap3(name, out, C);
    for (int part = 0; part < 3; part++) free(qkv[part]);
    free(packed), free(z), free(scores), free(pattern), free(merged);
}

static void mlp(float *out, const float *x, int block) {
    char name[64];
    float *inner = take((size_t)(T * F), sizeof(float));
    product(inner, x, of_block(block, "mlp.c_fc.weight"), of_block(block, "mlp.c_fc.bias"), C, F);
    snprintf(name, sizeof name, "h.%d.mlp.pre", block);
    tap3(name, inner, F);
    for (long i = 0; i < T * F; i++) {
        float v = inner[i];
        inner[i] = 0.5f * v * (1 + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
    }
    snprintf(name, sizeof name, "h.%d.mlp.post", block);
    tap3(name, inner, F);
    product(out, inner, of_block(block, "mlp.c_proj.weight"), of_block(block, "mlp.c_proj.bias"), F, C);
    snprintf(name, sizeof name, "h.%d.mlp.out", block);
    tap3(name, out, C);
    free(inner);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: gpt2_trace FOLDER OUT.safetensors ID...\n");
        return 2;
    }
    size_t nbytes;
    char *config = read_file(argv[1], "config.json", &nbytes), *file = read_file(argv[1], "model.safetensors", &nbytes);
    uint64_t length = 0;
    if (nbytes >= 8) memcpy(&length, file, 8);
    if (nbytes < 8 || length > nbytes - 8) die("not a safetensors file", argv[1]);
    char *text = take(length + 1, 1), *weights = take(nbytes, 1); /* copied, so that the floats are aligned */
    memcpy(text, file + 8, length);
    memcpy(weights, file + 8 + length, nbytes - 8 - length);
    header = text, data_section = weights;
    free(file);

    int n_layer = (int)setting(config, "n_layer", 12);
    C = (long)setting(config, "n_embd", 768), H = (long)setting(config, "n_head", 12), D = C / H;
    F = (long)setting(config, "n_inner", (double)(4 * C)), V = (long)setting(config, "vocab_size", 50257);
    epsilon = (float)setting(config, "layer_norm_epsilon", 1e-5);
    T = argc - 3;
    if (T > (long)setting(config, "n_positions", 1024)) die("too many ids", "n_positions");

    int64_t *ids = take((size_t)T, sizeof *ids);
    float *wte = take((size_t)(T * C), 4), *x = take((size_t)(T * C), 4), *y = take((size_t)(T * C), 4);
    float *normed = take((size_t)(T * C), 4), *logits = take((size_t)(T * V), 4);
    const float *table = parameter("wte.weight"), *places = parameter("wpe.weight");
    for (long t = 0; t < T; t++) {
        ids[t] = strtol(argv[3 + t], NULL, 10);
        if (ids[t] < 0 || ids[t] >= V) die("the id is beyond the vocabulary", argv[3 + t]);
        memcpy(wte + t * C, table + ids[t] * C, (size_t)C * 4);
        for (long i = 0; i < C; i++) x[t * C + i] = wte[t * C + i] + places[t * C + i];
    }
    trace_add("input_ids", "I64", ids, 2, (long[]){1, T});
    tap3("wte", wte, C);
    trace_add("wpe", "F32", places, 2, (long[]){T, C});
    tap3("embed", x, C);
    for (int block = 0; block < n_layer; block++) {
        char name[64];
        layer_norm(normed, x, of_block(block, "ln_1.weight"), of_block(block, "ln_1.bias"));
        snprintf(name, sizeof name, "h.%d.ln_1", block);
        tap3(name, normed, C);
        attention(y, normed, block);
        for (long i = 0; i < T * C; i++) x[i] += y[i];
        snprintf(name, sizeof name, "h.%d.resid_mid", block);
        tap3(name, x, C);
        layer_norm(normed, x, of_block(block, "ln_2.weight"), of_block(block, "ln_2.bias"));
        snprintf(name, sizeof name, "h.%d.ln_2", block);
        tap3(name, normed, C);
        mlp(y, normed, block);
        for (long i = 0; i < T * C; i++) x[i] += y[i];
        snprintf(name, sizeof name, "h.%d.resid_post", block);
        tap3(name, x, C);
    }
    layer_norm(normed, x, parameter("ln_f.weight"), parameter("ln_f.bias"));
    tap3("ln_f", normed, C);
    for (long t = 0; t < T; t++)
        for (long v = 0; v < V; v++)
            for (long i = 0; i < C; i++) logits[t * V + v] += normed[t * C + i] * table[v * C + i];
    tap3("logits", logits, V);
    const char *const metadata[] = {"format", "labkit-trace", "version", "1", "engine", "gpt2_trace.c",
                                    "model_type", "gpt2", "config", config, "compute_dtype", "float32",
                                    "accumulate_dtype", "float32", "weight_dtype", "float32", "device", "cpu", NULL};
    trace_write(argv[2], metadata);
    printf("%s: %d tensors, %ld ids, %d blocks\n", argv[2], n_taps, T, n_layer);
    return 0;
}
