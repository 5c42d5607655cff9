/* Damaged pages, as many as are asked for, to the decoder: compiled with the sanitizers, which stop at the first read or
 * write beyond a memory (tests/engine/kernels/test_pages_fuzzed.py). Called with a file of real pages, the number of
 * damaged ones, and a seed. Each memory is as large as the decoder is told, to the byte. */

#include "../../engine/kernels/pages.c"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int32_t kind, source, width, values, level_bytes, room, size; /* kind: header, Snappy, LZ4, page, a whole one */
} Head;

typedef struct {
    Head head;
    uint8_t *bytes;
} Seed;

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

static void *sized(int64_t size) { return malloc((size_t)(size > 0 ? size : 1)); }

/* An exact copy, damaged. */
static uint8_t *damaged(const Seed *seed, const Seed *other, Head *head) {
    int32_t size = head->size;
    uint8_t *bytes = sized(size);
    memcpy(bytes, seed->bytes, (size_t)size);
    for (uint64_t left = draw(5); left && size; left--) {
        const int32_t at = (int32_t)(draw(3) ? draw((uint64_t)size) : draw((uint64_t)least(size, 24)));
        switch (draw(5)) {
        case 0:
            bytes[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 1:
            bytes[at] = (uint8_t)draw(256);
            break;
        case 2:
            for (int32_t i = at; i < size && i < at + 5; i++) bytes[i] = 0xFF;
            break;
        case 3:
            size = at;
            break;
        default:
            for (int32_t i = 0; i < 16 && at + i < size && i < other->head.size; i++) bytes[at + i] = other->bytes[i];
        }
    }
    uint8_t *exact = sized(size);
    memcpy(exact, bytes, (size_t)size);
    free(bytes);
    head->size = size;
    return exact;
}

static void unpacked(const Head *head, const uint8_t *bytes) {
    const int64_t room = draw(4) ? head->room : (int64_t)draw(2 * (uint64_t)head->room + 2);
    uint8_t *to = sized(room);
    (head->kind == 1 ? penstock_snappy : penstock_lz4)(bytes, head->size, to, room);
    free(to);
}

static int64_t *drawn_picks(int64_t rows, int64_t base, int64_t *count) {
    int64_t *picks = sized(rows * 8);
    const uint64_t share = 1 + draw(20);
    *count = 0;
    for (int64_t row = 0; row < rows; row++)
        if (draw(share) == 0) picks[(*count)++] = row + base;
    return picks;
}

static int64_t numbers(Page *page, int64_t width, int64_t values, const int64_t *picks, int64_t base, int64_t count) {
    static const int64_t KINDS[] = {SAME, TO_8, TO_16, TO_64, TO_128, BIG_TO_64, BIG_TO_128};
    static const int64_t WIDTHS[] = {0, 1, 2, 8, 16, 8, 16};
    int64_t chosen = (int64_t)draw(7);
    const int64_t kind = KINDS[chosen];
    if ((kind == TO_8 || kind == TO_16 || kind == TO_64) && width != 4) chosen = 0;
    if ((kind == TO_128 && width != 4 && width != 8) || (kind == BIG_TO_64 && width > 8)) chosen = 0;
    if (kind == BIG_TO_128 && width > 16) chosen = 0;
    const int64_t out = chosen ? WIDTHS[chosen] : width, known = (int64_t)draw(300);
    uint8_t *words = calloc((size_t)known + 1, (size_t)out), *to = sized(count * out);
    const int64_t found = penstock_page_numbers(page, values, picks, base, count, KINDS[chosen], words, known, out, to);
    free(words), free(to);
    return found;
}

static int64_t texts(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count) {
    const int64_t known = (int64_t)draw(40);
    int32_t *bounds = sized((known + 1) * 4), *ends = sized(count * 4);
    bounds[0] = 0;
    for (int64_t i = 0; i < known; i++) bounds[i + 1] = bounds[i] + (int32_t)draw(50);
    uint8_t *words = calloc((size_t)bounds[known] + 1, 1), *to;
    words = realloc(words, (size_t)bounds[known] + !bounds[known]);
    int64_t room = (int64_t)draw(2000), offset = 0, done = 0, found;
    to = sized(room);
    while ((found = penstock_page_texts(page, values, picks, base, count, bounds, words, known, ends + done, to, offset,
                                        room)) == 1 && room < 1 << 24) {
        values -= page->taken, base += page->taken, count -= page->given;
        if (picks) picks += page->given;
        done += page->given;
        if (done) offset = ends[done - 1];
        room = 2 * room + 100;
        to = realloc(to, (size_t)room);
    }
    if (found == 0 && done + page->given && draw(2)) {
        uint8_t *out = sized((done + page->given) * 16);
        penstock_page_decimals(ends, to, done + page->given, out);
        free(out);
    }
    free(bounds), free(ends), free(words), free(to);
    return found;
}

/* All of the next rows at once, as they are or by words. */
static int64_t all_rows(Page *page, int64_t width, int64_t rows, uint8_t *valid) {
    const int64_t known = (int64_t)draw(300);
    uint8_t *words = calloc((size_t)known + 1, (size_t)width), *to = sized(rows * width);
    const int64_t found = penstock_page_rows(page, rows, valid, SAME, words, known, width, to);
    free(words), free(to);
    return found;
}

/* Rows of a page, in steps, until they end or something does not fit. */
static void rows_of(Page *page, const Head *head, int is_text) {
    int64_t fine = 0;
    for (int64_t left = head->values, base = 0; fine >= 0 && left > 0;) {
        const int64_t rows = 1 + (int64_t)draw((uint64_t)least(left, 4000)), begin = base;
        int64_t found = rows, count = rows, *picks = draw(2) ? drawn_picks(rows, base, &count) : NULL;
        uint8_t *valid = sized(rows), *chosen = sized(count);
        int64_t *places = sized(count * 8);
        if (!picks && !is_text && draw(2)) {
            fine = all_rows(page, head->width, rows, head->level_bytes ? valid : NULL);
            count = 0, found = 0;
        } else if (head->level_bytes) {
            fine = found = penstock_page_levels(page, rows, valid);
            if (fine >= 0 && picks) {
                count = penstock_page_places(valid, picks, begin, count, chosen, places);
                memcpy(picks, places, (size_t)count * 8);
            } else {
                count = found;
            }
        }
        const int64_t from = head->level_bytes ? 0 : begin;
        if (fine >= 0)
            fine = is_text ? texts(page, found, picks, from, count) : numbers(page, head->width, found, picks, from, count);
        free(valid), free(chosen), free(places), free(picks);
        left -= rows, base += rows;
    }
}

/* Values of a page, and its levels. */
static void decoded(Head *head, const uint8_t *bytes) {
    static const int32_t ALL[] = {1, 2, 3, 4, 8, 12, 16, 20, 33};
    if (draw(8) == 0) head->source = (int32_t)draw(8);
    if (draw(8) == 0) head->width = ALL[draw(9)];
    if (draw(8) == 0) head->values = (int32_t)draw(3000);
    if (head->level_bytes && draw(8) == 0) head->level_bytes = (int32_t)draw((uint64_t)head->size + 1);
    if (head->source == DELTA && head->width != 4) head->width = 8;
    if (head->source == BITS || head->source == BOOLEANS) head->width = 1;
    if (head->source == SPLIT && head->width == 0) head->width = 4;
    if (head->level_bytes > head->size) return;
    const int is_text = head->width == 0 || head->source == LENGTHS || head->source == PREFIXES;
    const int64_t size = head->size - head->level_bytes;
    uint8_t *levels = sized(head->level_bytes), *values = sized(size), *last = sized(size);
    memcpy(levels, bytes, (size_t)head->level_bytes);
    memcpy(values, bytes + head->level_bytes, (size_t)size);
    Page page;
    if (penstock_page_open(&page, head->level_bytes ? levels : NULL, head->level_bytes, values, size, head->source,
                           head->width, last, head->source == PREFIXES ? size : 0) >= 0)
        rows_of(&page, head, is_text);
    free(levels), free(values), free(last);
}

/* A page from its header on, as it lies in a file; ``level_bytes``: whether rows may be null, ``room``: the codec. */
static void whole(Head *head, const uint8_t *bytes) {
    int64_t header[HEADER_FIELDS];
    const int64_t read = penstock_page_header(bytes, head->size, header);
    if (read <= 0 || header[COMPRESSED] < 0 || header[COMPRESSED] > head->size - read) return;
    if (header[UNCOMPRESSED] < 0 || header[UNCOMPRESSED] > 1 << 20 || head->source == PREFIXES) return;
    if (draw(8) == 0) head->level_bytes = !head->level_bytes;
    if (draw(8) == 0) head->room = (int32_t)draw(3);
    uint8_t *body = sized(header[COMPRESSED]), *room = sized(head->room ? header[UNCOMPRESSED] : 0);
    memcpy(body, bytes + read, (size_t)header[COMPRESSED]);
    Page page;
    head->values = (int32_t)least(header[VALUES], 3000);
    if (penstock_page_begin(&page, header, body, head->level_bytes, head->room, head->source, head->width, room) >= 0)
        rows_of(&page, head, head->width == 0 || head->source == LENGTHS);
    free(body), free(room);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    static Seed seeds[100000];
    int64_t known = 0;
    FILE *file = fopen(arguments[1], "rb");
    for (Seed *seed = seeds; known < 100000 && fread(&seed->head, sizeof(Head), 1, file) == 1; seed++, known++) {
        seed->bytes = sized(seed->head.size);
        if (fread(seed->bytes, 1, (size_t)seed->head.size, file) != (size_t)seed->head.size) return 3;
    }
    fclose(file);
    state = strtoull(arguments[3], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int64_t left = strtoll(arguments[2], NULL, 10); left; left--) {
        const Seed *seed = seeds + draw((uint64_t)known);
        Head head = seed->head;
        uint8_t *bytes = damaged(seed, seeds + draw((uint64_t)known), &head);
        int64_t header[HEADER_FIELDS];
        if (head.kind == 0)
            penstock_page_header(bytes, head.size, header);
        else if (head.kind == 3)
            decoded(&head, bytes);
        else if (head.kind == 4)
            whole(&head, bytes);
        else
            unpacked(&head, bytes);
        free(bytes);
    }
    printf("%s pages, %lld real ones\n", arguments[2], (long long)known);
    return 0;
}
