/* Damaged pages, as many as are asked for, to the decoder: compiled with the sanitizers, which stop at the first read or
 * write beyond a memory (tests/engine/kernels/test_pages_fuzzed.py). Called with a file of real columns, the number of
 * damaged inputs, and a seed. An input is a column, or of a page of one the header, the body, or what the codec gives of
 * it. Each memory is as large as the decoder is told, to the byte. */

#include "../../engine/kernels/pages.c"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int32_t width, nullable, codec, rows, sources[ENCODINGS], size;
} Head;

enum { WHOLE_COLUMN, HEADER, BODY, PAGE };

typedef struct {
    Head head;
    int what;
    int64_t header[HEADER_FIELDS]; /* of a page */
    uint8_t *bytes;
} Seed;

enum { MOST_SEEDS = 400000, LARGEST = 20000, MOST_ROOM = 1 << 20 };

static Seed seeds[MOST_SEEDS];
static int64_t known_seeds, finished; /* and inputs whose rows were all read */
static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

static void *sized(int64_t size) { return malloc((size_t)(size > 0 ? size : 1)); }

/* One of the wanted kind, of which there are few where the pages are small. */
static const Seed *drawn_seed(int what) {
    const Seed *seed = seeds + draw((uint64_t)known_seeds);
    for (int64_t tries = 100; seed->what != what && tries; tries--) seed = seeds + draw((uint64_t)known_seeds);
    return seed;
}

/* An exact copy; a memory of no bytes has one, which is the sanitizer's. */
static uint8_t *copied(const uint8_t *bytes, int64_t size) {
    uint8_t *made = sized(size);
    memcpy(made, bytes, (size_t)size);
    return made;
}

static uint8_t *damaged(const Seed *seed, const Seed *other, int32_t *left) {
    int32_t size = seed->head.size;
    uint8_t *bytes = copied(seed->bytes, size);
    for (uint64_t times = draw(5); times && size; times--) {
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
            if (draw(4) == 0) size = at;
            break;
        default:
            for (int32_t i = 0; i < 16 && at + i < size && i < other->head.size; i++) bytes[at + i] = other->bytes[i];
        }
    }
    uint8_t *exact = copied(bytes, size);
    free(bytes);
    *left = size;
    return exact;
}

static int64_t unpacked(int64_t codec, const uint8_t *bytes, int64_t size, uint8_t *to, int64_t room) {
    return (codec == SNAPPY ? penstock_snappy : penstock_lz4)(bytes, size, to, room);
}

/* The body of a page without its codec, exactly; NULL: it has none that is of here, or does not fit it. */
static uint8_t *body_of(int64_t codec, const uint8_t *bytes, int64_t size, int64_t made) {
    if (made > MOST_ROOM || codec > LZ4 || (codec == NO_CODEC && made != size)) return NULL;
    if (codec == NO_CODEC || made == 0) return copied(bytes, made);
    uint8_t *to = sized(made);
    if (unpacked(codec, bytes, size, to, made) == 0) return to;
    free(to);
    return NULL;
}

/* What page_stream.py holds for a column. */
typedef struct {
    Column column;
    const uint8_t *bytes; /* of the file */
    int64_t size;
    uint8_t *block, *room, *words, *levels, *values, *last;
    int32_t *bounds;
} Reader;

static void close_reader(Reader *reader) {
    free(reader->block), free(reader->room), free(reader->words), free(reader->bounds);
    free(reader->levels), free(reader->values), free(reader->last);
}

/* What is made of values of this width, as pages.py would. */
static void choose_kind(Column *column) {
    static const int64_t KINDS[] = {SAME, TO_8, TO_16, TO_64, TO_128, BIG_TO_64, BIG_TO_128};
    static const int64_t WIDTHS[] = {0, 1, 2, 8, 16, 8, 16};
    const int64_t width = column->width;
    int64_t chosen = (int64_t)draw(7);
    if (width == 0) {
        column->kind = draw(2) ? TEXT : draw(2) ? CODES_OF_WORDS : BIG_TO_128;
        column->out_width = column->kind == CODES_OF_WORDS ? 4 : 16;
        return;
    }
    if ((chosen == 1 || chosen == 2 || chosen == 3) && width != 4) chosen = 0;
    if ((chosen == 4 && width != 4 && width != 8) || (chosen == 5 && width > 8) || (chosen == 6 && width > 16)) chosen = 0;
    column->kind = KINDS[chosen];
    column->out_width = chosen ? WIDTHS[chosen] : width;
}

static int64_t give_bytes(Reader *reader) {
    Column *const column = &reader->column;
    const int64_t at = column->needs_at, least_size = column->needs_size, left = reader->size - at;
    if (at < 0 || least_size <= 0 || least_size > left) return WRONG;
    const int64_t size = least_size + (int64_t)draw((uint64_t)(left - least_size) + 1);
    free(reader->block);
    column->block = reader->block = copied(reader->bytes + at, size);
    column->block_size = size, column->block_at = at;
    return 0;
}

static int64_t give_body(Reader *reader) {
    Column *const column = &reader->column;
    const int64_t *const header = column->header;
    const uint8_t *bytes = reader->bytes + column->body_at;
    int64_t size = header[COMPRESSED], made = header[UNCOMPRESSED], level_size = 0;
    const int is_second = header[PAGE_TYPE] == DATA_2;
    if (is_second) level_size = header[LEVEL_BYTES];
    if (level_size < 0 || level_size > size || level_size > made) return WRONG;
    uint8_t *body = body_of(is_second && !header[IS_COMPRESSED] ? NO_CODEC : column->codec, bytes + level_size,
                            size - level_size, made - level_size);
    if (!body) return WRONG;
    const uint8_t *levels = bytes, *values = body;
    made -= level_size;
    if (!is_second && column->nullable) {
        level_size = made < 4 ? WRONG : (int64_t)load_some(body, body + 4);
        if (level_size < 0 || level_size > made - 4) {
            free(body);
            return WRONG;
        }
        levels = body + 4;
        values = body + 4 + level_size, made -= 4 + level_size;
    }
    free(reader->levels), free(reader->values), free(reader->last);
    reader->levels = copied(levels, level_size), reader->values = copied(values, made), reader->last = sized(made);
    free(body);
    return penstock_column_open(column, column->nullable ? reader->levels : NULL, level_size, reader->values, made,
                                reader->last, made);
}

static int64_t make_words(Reader *reader, const uint8_t *values, int64_t size, int64_t known) {
    Column *const column = &reader->column;
    if (known > size / (column->width ? column->width : 4)) return WRONG;
    column->known = known;
    if (column->width || column->kind == BIG_TO_128) {
        column->words = reader->words = sized(known * column->out_width);
        return penstock_words_as(values, size, known, column->width, column->kind, column->out_width, reader->words);
    }
    reader->bounds = sized((known + 1) * 4);
    uint8_t *room = sized(size);
    reader->bounds[0] = 0;
    const int64_t found = penstock_words_texts(values, size, known, reader->bounds + 1, room);
    reader->words = found < 0 ? NULL : copied(room, reader->bounds[known]);
    free(room);
    column->bounds = reader->bounds, column->words = column->kind == TEXT ? reader->words : NULL;
    return found;
}

static int64_t give_words(Reader *reader) {
    Column *const column = &reader->column;
    const int64_t *const header = column->words_header;
    if (column->words_at + header[COMPRESSED] > reader->size) return WRONG;
    uint8_t *values = body_of(column->codec, reader->bytes + column->words_at, header[COMPRESSED], header[UNCOMPRESSED]);
    if (!values) return WRONG;
    column->words_state = WORDS_READ;
    const int64_t found = make_words(reader, values, header[UNCOMPRESSED], header[VALUES]);
    free(values);
    return found;
}

static int64_t give(Reader *reader, int64_t need) {
    Column *const column = &reader->column;
    switch (need) {
    case NEEDS_BYTES:
        return give_bytes(reader);
    case NEEDS_CHECK:
        column->checked = 1;
        return draw(8) ? 0 : WRONG;
    case NEEDS_BODY:
        return give_body(reader);
    case NEEDS_ROOM:
        free(reader->room);
        reader->room = column->header[UNCOMPRESSED] > MOST_ROOM ? NULL : sized(column->header[UNCOMPRESSED]);
        column->room = reader->room, column->room_size = column->header[UNCOMPRESSED];
        return reader->room ? 0 : WRONG;
    case NEEDS_WORDS:
        return give_words(reader);
    default:
        return WRONG;
    }
}

static int64_t *drawn_picks(int64_t rows, int64_t *count) {
    int64_t *picks = sized(rows * 8);
    const uint64_t share = 1 + draw(20) * draw(3);
    *count = 0;
    for (int64_t row = 0; row < rows; row++)
        if (draw(share) == 0) picks[(*count)++] = row;
    return picks;
}

/* The next rows, or some of them, into memories of their size. */
static int64_t take(Reader *reader, int64_t rows) {
    Column *const column = &reader->column;
    int64_t count = rows, found, *picks = draw(2) ? drawn_picks(rows, &count) : NULL;
    uint8_t *valid = column->nullable ? sized(count) : NULL, *to = sized(count * column->out_width);
    int32_t *ends = sized(count * 4);
    column->base = column->first = column->done = column->nulls = column->size = 0;
    column->valid = valid, column->ends = ends;
    column->to_size = column->kind == TEXT ? (int64_t)draw((uint64_t)least(count * column->out_width, 2000) + 1) : 0;
    if (column->kind == TEXT) to = realloc(to, (size_t)column->to_size + !column->to_size);
    column->to = to;
    while ((found = penstock_column_read(column, rows, picks, count)) > 0) {
        if (found == NEEDS_TEXT_ROOM && column->to_size < 1 << 22) {
            column->to_size = 2 * column->to_size + 100;
            column->to = to = realloc(to, (size_t)column->to_size);
        } else if (found == OTHER_FORM) { /* the rest as texts, in a memory of its own */
            column->kind = TEXT, column->words = reader->words;
            column->done = column->nulls = column->to_size = 0;
            column->to = to = realloc(to, 1);
        } else if (give(reader, found) < 0) {
            found = WRONG;
            break;
        }
    }
    free(picks), free(valid), free(to), free(ends);
    return found;
}

static void read_all(Reader *reader, int64_t rows) {
    for (int64_t left = rows, now; left > 0; left -= now) {
        now = 1 + (int64_t)draw((uint64_t)least(left, draw(3) ? 4000 : 12000));
        if (take(reader, now) < 0) return;
    }
    finished++;
}

static Reader reader_of(const Head *head) {
    static const int32_t NO_BOUNDS[] = {0};
    Reader reader = {.column = {.nullable = head->nullable, .codec = head->codec, .width = head->width}};
    for (int i = 0; i < ENCODINGS; i++) reader.column.sources[i] = head->sources[i];
    reader.column.bounds = NO_BOUNDS;
    choose_kind(&reader.column);
    return reader;
}

/* Where the pages of the column are that was not damaged, as an index would say; NULL: none. */
static int64_t *places_of(const Seed *seed, int64_t *count) {
    int64_t header[HEADER_FIELDS], row = 0, *places = sized(16 * ((int64_t)seed->head.size + 1));
    *count = 0;
    for (int64_t at = 0; at < seed->head.size;) {
        const int64_t read = page_header(seed->bytes + at, seed->head.size - at, header);
        if (read <= 0) break;
        if (header[PAGE_TYPE] == DATA || header[PAGE_TYPE] == DATA_2) {
            places[2 * *count] = at, places[2 * *count + 1] = row;
            row += header[VALUES];
            ++*count;
        }
        at += read + header[COMPRESSED];
    }
    places[2 * *count] = seed->head.size, places[2 * *count + 1] = row;
    return places;
}

static void whole(const Seed *seed, const uint8_t *bytes, int32_t size) {
    Reader reader = reader_of(&seed->head);
    const int64_t rows = draw(8) ? seed->head.rows : (int64_t)draw(6000);
    reader.bytes = bytes, reader.size = size;
    reader.column.rows = reader.column.unmet = rows;
    reader.column.end = draw(8) ? size : size + (int64_t)draw(100);
    int64_t *places = draw(3) || rows != seed->head.rows ? NULL : places_of(seed, &reader.column.place_count);
    reader.column.places = places;
    if (draw(8) == 0) penstock_column_next(&reader.column);
    read_all(&reader, rows);
    free(places);
    close_reader(&reader);
}

/* A page of which the codec gave these bytes: levels and values. */
static void page(const Seed *seed, const uint8_t *bytes, int32_t size) {
    Reader reader = reader_of(&seed->head);
    Column *const column = &reader.column;
    memcpy(column->header, seed->header, sizeof(column->header));
    column->codec = LZ4 + 1; /* whose body is made here */
    column->page_left = draw(8) ? seed->header[VALUES] : (int64_t)draw(6000);
    if (column->header[ENCODING] < 0 || column->header[ENCODING] >= ENCODINGS) return;
    if (column->sources[column->header[ENCODING]] == WRONG) return;
    uint8_t *words = calloc(LARGEST, 1); /* texts without a character, or zeros */
    int64_t fine = make_words(&reader, words, LARGEST, (int64_t)draw(300));
    free(words);
    column->words_state = WORDS_READ;
    column->codec = NO_CODEC;
    column->header[COMPRESSED] = column->header[UNCOMPRESSED] = size;
    column->header[IS_COMPRESSED] = 1;
    reader.bytes = bytes, reader.size = size;
    if (fine >= 0 || column->kind == BIG_TO_128) fine = give_body(&reader);
    if (fine >= 0) read_all(&reader, column->page_left);
    close_reader(&reader);
}

static void body(const Seed *seed, const uint8_t *bytes, int32_t size) {
    const int64_t made = seed->header[UNCOMPRESSED], room = draw(4) ? made : (int64_t)draw(2 * (uint64_t)made + 2);
    uint8_t *to = sized(room);
    unpacked(seed->head.codec, bytes, size, to, room);
    free(to);
}

static Seed *add(const Head *head, int what, const int64_t *header, const uint8_t *bytes, int64_t size) {
    if (known_seeds == MOST_SEEDS || size > 3 * LARGEST || (what != WHOLE_COLUMN && size > LARGEST)) return NULL;
    Seed *const seed = seeds + known_seeds++;
    *seed = (Seed){*head, what, {0}, copied(bytes, size)};
    if (header) memcpy(seed->header, header, sizeof(seed->header));
    seed->head.size = (int32_t)size;
    return seed;
}

/* The pages of a column. */
static void add_pages(const Head *head, const uint8_t *bytes) {
    int64_t header[HEADER_FIELDS];
    for (int64_t at = 0; at < head->size;) {
        const int64_t read = page_header(bytes + at, head->size - at, header), size = header[COMPRESSED];
        if (read <= 0 || size < 0 || size > head->size - at - read) return;
        const uint8_t *const from = bytes + at + read;
        at += read + size;
        add(head, HEADER, header, from - read, read);
        if (head->codec == SNAPPY || head->codec == LZ4) add(head, BODY, header, from, size);
        const int64_t plain = header[PAGE_TYPE] == DATA_2 ? header[LEVEL_BYTES] : 0;
        uint8_t *made = body_of(head->codec, from + plain, size - plain, header[UNCOMPRESSED] - plain);
        if (!made) continue;
        uint8_t *page = sized(header[UNCOMPRESSED]);
        memcpy(page, from, (size_t)plain);
        memcpy(page + plain, made, (size_t)(header[UNCOMPRESSED] - plain));
        if (header[PAGE_TYPE] != DICTIONARY) add(head, PAGE, header, page, header[UNCOMPRESSED]);
        free(page), free(made);
    }
}

static void tried(const Seed *seed, const uint8_t *bytes, int32_t size) {
    int64_t header[HEADER_FIELDS];
    switch (seed->what) {
    case HEADER:
        page_header(bytes, size, header);
        break;
    case BODY:
        body(seed, bytes, size);
        break;
    case PAGE:
        penstock_levels_fit(bytes, size, 1 + (int64_t)draw(2), (int64_t)draw(6000), 1 + (int64_t)draw(3),
                            (int64_t)draw(6000), (int64_t)draw(100));
        page(seed, bytes, size);
        break;
    default:
        whole(seed, bytes, size);
    }
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    FILE *file = fopen(arguments[1], "rb");
    for (Head head; fread(&head, sizeof(Head), 1, file) == 1;) {
        uint8_t *bytes = sized(head.size);
        if (fread(bytes, 1, (size_t)head.size, file) != (size_t)head.size) return 3;
        add(&head, WHOLE_COLUMN, NULL, bytes, head.size);
        add_pages(&head, bytes);
        free(bytes);
    }
    fclose(file);
    state = strtoull(arguments[3], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int64_t left = strtoll(arguments[2], NULL, 10); left; left--) {
        const Seed *seed = drawn_seed((int)(draw(2) ? WHOLE_COLUMN : draw(4)));
        int32_t size;
        uint8_t *bytes = damaged(seed, seeds + draw((uint64_t)known_seeds), &size);
        tried(seed, bytes, size);
        free(bytes);
    }
    printf("%s inputs of %lld, %lld read to the end\n", arguments[2], (long long)known_seeds, (long long)finished);
    return 0;
}
