/* Pages of flat Parquet columns, decoded. pages.py says in which order these are called, and what they may not fit.

Rules:

1. Files are untrusted. Nothing is read before its place was compared with the end of its memory, and nothing is written
   beyond the room that the caller gives. Sizes are compared by subtraction, which cannot overflow.
2. What does not fit is WRONG. Nothing that was written counts then, and the page is not read on.
3. No state but what callers pass, no allocation, and nothing blocks: any number of threads may be inside, without the
   interpreter's lock.
4. ``picks`` are ascending positions of rows, less ``base``; NULL: all rows. */

#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

#define WRONG (-1)
#define NONE (-1)
#define BLOCK 256  /* values that are made at once where they are picked or converted afterwards */
#define CODES 1024 /* codes that are unpacked at once */
#define WIDEST 32  /* bytes of a fixed value that goes through a block */
#define SHORT_TEXT 32

/* Changes with every change of a function's name, arguments or meaning. */
API int64_t penstock_pages(void) { return 2; }

static inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

static inline uint64_t load64(const uint8_t *from) {
    uint64_t found;
    memcpy(&found, from, sizeof(found));
    return found;
}

/* The bytes before ``end``, at most 8, as a number. */
static inline uint64_t load_some(const uint8_t *from, const uint8_t *end) {
    uint64_t found = 0;
    if (from < end) memcpy(&found, from, (size_t)least(8, end - from));
    return found;
}

static inline int64_t unzigzag(uint64_t x) { return (int64_t)((x >> 1) ^ (0 - (x & 1))); }

/* ---------------------------------------------------------------- headers, in Thrift's compact protocol */

enum { STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT };
enum { FINE, TOO_SHORT, BAD };
enum {
    PAGE_TYPE, UNCOMPRESSED, COMPRESSED, CHECKSUM, HAS_CHECKSUM, VALUES, ENCODING, LEVEL_ENCODING, ROWS, LEVEL_BYTES,
    REPEAT_BYTES, IS_COMPRESSED, HEADER_FIELDS
};
#define DEEPEST 8

typedef struct {
    const uint8_t *at, *end;
    int state;
} Bytes;

static uint64_t varint(Bytes *bytes) {
    uint64_t found = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (bytes->at == bytes->end) {
            if (bytes->state == FINE) bytes->state = TOO_SHORT;
            return 0;
        }
        const uint8_t byte = *bytes->at++;
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return found;
    }
    bytes->state = BAD;
    return 0;
}

static uint8_t one_byte(Bytes *bytes) {
    if (bytes->at < bytes->end) return *bytes->at++;
    if (bytes->state == FINE) bytes->state = TOO_SHORT;
    return 0;
}

static void pass(Bytes *bytes, uint64_t count) {
    if (count <= (uint64_t)(bytes->end - bytes->at))
        bytes->at += count;
    else if (bytes->state == FINE)
        bytes->state = TOO_SHORT;
}

/* The type of the next field, whose number goes to ``id``; STOP at the end of the struct. */
static int next_field(Bytes *bytes, int64_t *id) {
    const uint8_t head = one_byte(bytes);
    if (bytes->state != FINE || (head & 15) == STOP) return STOP;
    if (head >> 4)
        *id += head >> 4;
    else
        *id = (int16_t)unzigzag(varint(bytes));
    return head & 15;
}

/* Every element takes a byte at least, so that a count cannot hold us up. */
static void pass_value(Bytes *bytes, int type, int inside, int depth) {
    if (depth > DEEPEST) bytes->state = BAD;
    if (bytes->state != FINE) return;
    switch (type) {
    case TRUE:
    case FALSE:
        pass(bytes, inside);
        break;
    case BYTE:
        pass(bytes, 1);
        break;
    case I16:
    case I32:
    case I64:
        varint(bytes);
        break;
    case DOUBLE:
        pass(bytes, 8);
        break;
    case BINARY:
        pass(bytes, varint(bytes));
        break;
    case LIST:
    case SET: {
        const uint8_t head = one_byte(bytes);
        uint64_t count = head >> 4;
        if (count == 15) count = varint(bytes);
        for (; count && bytes->state == FINE; count--) pass_value(bytes, head & 15, 1, depth + 1);
        break;
    }
    case MAP: {
        uint64_t count = varint(bytes);
        const uint8_t types = count ? one_byte(bytes) : 0;
        for (; count && bytes->state == FINE; count--) {
            pass_value(bytes, types >> 4, 1, depth + 1);
            pass_value(bytes, types & 15, 1, depth + 1);
        }
        break;
    }
    case STRUCT: {
        int64_t id = 0;
        for (int inner; (inner = next_field(bytes, &id)) != STOP && bytes->state == FINE;)
            pass_value(bytes, inner, 0, depth + 1);
        break;
    }
    default:
        bytes->state = BAD;
    }
}

/* A number of 32 bits; one of another type is not the field that was meant. */
static void number_field(Bytes *bytes, int type, int64_t *found) {
    if (type == I32)
        *found = unzigzag(varint(bytes));
    else
        pass_value(bytes, type, 0, 1);
}

/* The header of a data page of either version, or of a dictionary, which is inside the page's. */
static void inner_header(Bytes *bytes, int64_t *header, int is_second) {
    static const int8_t FIRST[] = {VALUES, ENCODING, LEVEL_ENCODING};
    static const int8_t SECOND[] = {VALUES, NONE, ROWS, ENCODING, LEVEL_BYTES, REPEAT_BYTES};
    const int8_t *const places = is_second ? SECOND : FIRST;
    const int64_t known = is_second ? 6 : 3;
    int64_t id = 0;
    for (int type; (type = next_field(bytes, &id)) != STOP && bytes->state == FINE;) {
        if (is_second && id == 7 && (type == TRUE || type == FALSE))
            header[IS_COMPRESSED] = type == TRUE;
        else if (id >= 1 && id <= known && places[id - 1] != NONE)
            number_field(bytes, type, header + places[id - 1]);
        else
            pass_value(bytes, type, 0, 2);
    }
}

/* Reads a page's header into ``header``: HEADER_FIELDS numbers, -1 what it lacks. Its bytes come back; 0: more of them are
 * needed. */
API int64_t penstock_page_header(const uint8_t *from, int64_t size, int64_t *header) {
    static const int8_t PLACES[] = {PAGE_TYPE, UNCOMPRESSED, COMPRESSED, CHECKSUM};
    Bytes bytes = {from, from + size, FINE};
    int64_t id = 0;
    for (int field = 0; field < HEADER_FIELDS; field++) header[field] = NONE;
    header[HAS_CHECKSUM] = 0;
    header[IS_COMPRESSED] = 1;
    for (int type; (type = next_field(&bytes, &id)) != STOP && bytes.state == FINE;) {
        if (id >= 1 && id <= 4) {
            header[HAS_CHECKSUM] |= id == 4;
            number_field(&bytes, type, header + PLACES[id - 1]);
        } else if ((id == 5 || id == 7 || id == 8) && type == STRUCT) {
            inner_header(&bytes, header, id == 8);
        } else {
            pass_value(&bytes, type, 0, 1);
        }
    }
    if (bytes.state == BAD) return WRONG;
    return bytes.state == TOO_SHORT ? 0 : bytes.at - from;
}

/* ---------------------------------------------------------------- codecs: exactly ``room`` bytes come out, or WRONG */

/* ``length`` bytes from ``offset`` before ``to``, which may overlap. Sizes were compared. */
static inline void repeat(uint8_t *to, int64_t offset, int64_t length, const uint8_t *end) {
    const uint8_t *from = to - offset;
    if (offset >= 16 && end - to >= length + 16) {
        for (int64_t i = 0; i < length; i += 16) memcpy(to + i, from + i, 16);
    } else if (offset >= 8 && end - to >= length + 8) {
        for (int64_t i = 0; i < length; i += 8) memcpy(to + i, from + i, 8);
    } else if (offset == 1) {
        memset(to, *from, (size_t)length);
    } else {
        for (int64_t i = 0; i < length; i++) to[i] = from[i];
    }
}

/* A copy of at most 64 bytes where both sides may go on; the caller moves on by ``length``. */
static inline void copy_near(uint8_t *to, const uint8_t *from, int64_t length) {
    memcpy(to, from, 16);
    if (length > 16) {
        memcpy(to + 16, from + 16, 16);
        if (length > 32) {
            memcpy(to + 32, from + 32, 16);
            memcpy(to + 48, from + 48, 16);
        }
    }
}

API int64_t penstock_snappy(const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    Bytes head = {from, from + size, FINE};
    const uint8_t *const begin = to, *const to_end = to + room, *const end = from + size;
    if (varint(&head) != (uint64_t)room || head.state != FINE) return WRONG;
    from = head.at;
    while (from < end) {
        const uint8_t tag = *from++;
        int64_t length = (tag >> 2) + 1;
        if ((tag & 3) == 0) {
            if (length > 60) {
                const int64_t bytes = length - 60;
                if (bytes > end - from) return WRONG;
                length = (int64_t)(load_some(from, from + bytes) + 1);
                from += bytes;
            }
            if (length > end - from || length > to_end - to) return WRONG;
            if (length <= 64 && end - from >= 64 && to_end - to >= 64)
                copy_near(to, from, length);
            else
                memcpy(to, from, (size_t)length);
            from += length;
        } else {
            int64_t offset;
            if (end - from < 4 && end - from < ((tag & 3) == 3 ? 4 : tag & 3)) return WRONG;
            if ((tag & 3) == 1) {
                length = (tag >> 2 & 7) + 4;
                offset = (int64_t)(tag >> 5) << 8 | *from++;
            } else if ((tag & 3) == 2) {
                offset = from[0] | from[1] << 8;
                from += 2;
            } else {
                offset = (int64_t)(from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24);
                from += 4;
            }
            if (offset == 0 || offset > to - begin || length > to_end - to) return WRONG;
            if (offset >= 16 && to_end - to >= 64) /* 16 bytes at a time: what is copied is there before */
                copy_near(to, to - offset, length);
            else
                repeat(to, offset, length, to_end);
        }
        to += length;
    }
    return to == to_end ? 0 : WRONG;
}

/* The rest of a length of 15 and more; WRONG if it is longer than ``most``. */
static int64_t lz4_length(const uint8_t **from, const uint8_t *end, int64_t length, int64_t most) {
    for (uint8_t byte = 255; byte == 255;) {
        if (*from == end || length > most) return WRONG;
        length += byte = *(*from)++;
    }
    return length;
}

API int64_t penstock_lz4(const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    const uint8_t *const begin = to, *const to_end = to + room, *const end = from + size;
    while (from < end) {
        const uint8_t token = *from++;
        int64_t length = token >> 4;
        if (length == 15) length = lz4_length(&from, end, length, room);
        if (length < 0 || length > end - from || length > to_end - to) return WRONG;
        memcpy(to, from, (size_t)length);
        from += length, to += length;
        if (from == end) break;
        if (end - from < 2) return WRONG;
        const int64_t offset = from[0] | from[1] << 8;
        from += 2;
        length = token & 15;
        if (length == 15) length = lz4_length(&from, end, length, room);
        if (length < 0 || offset == 0 || offset > to - begin || length + 4 > to_end - to) return WRONG;
        repeat(to, offset, length + 4, to_end);
        to += length + 4;
    }
    return to == to_end ? 0 : WRONG;
}

/* ---------------------------------------------------------------- runs: levels, codes, booleans */

typedef struct {
    const uint8_t *packed; /* the run's values, if they are packed */
    const uint8_t *next, *end;
    int64_t left, bit, bits; /* values that the run has left; the bit of the next one, or NONE: all are ``value`` */
    int64_t value;
} Runs;

static void open_runs(Runs *runs, const uint8_t *from, const uint8_t *end, int64_t bits) {
    *runs = (Runs){from, from, end, 0, NONE, bits, 0};
}

/* Begins the next run, of one value at least. */
static int64_t next_run(Runs *runs) {
    while (runs->left == 0) {
        Bytes bytes = {runs->next, runs->end, FINE};
        const uint64_t head = varint(&bytes);
        const int64_t room = runs->end - bytes.at;
        if (bytes.state != FINE || head >> 1 > INT32_MAX) return WRONG;
        runs->next = bytes.at;
        runs->left = (int64_t)(head >> 1);
        runs->bit = NONE;
        runs->value = 0;
        if (head & 1) {
            int64_t size = runs->left * runs->bits;
            runs->left *= 8;
            if (runs->bits == 0) continue;
            if (size > room) {
                size = room;
                runs->left = room * 8 / runs->bits;
            }
            runs->bit = 0;
            runs->packed = bytes.at;
            runs->next += size;
        } else {
            const int64_t size = (runs->bits + 7) / 8;
            if (size > room) return WRONG;
            runs->value = (int64_t)load_some(bytes.at, bytes.at + size);
            if (runs->value >> runs->bits) return WRONG;
            runs->next += size;
        }
    }
    return 0;
}

static inline void pass_run(Runs *runs, int64_t count) {
    runs->left -= count;
    if (runs->bit != NONE) runs->bit += count * runs->bits;
}

static inline uint32_t packed_at(const Runs *runs, int64_t bit) {
    const uint8_t *const from = runs->packed + (bit >> 3);
    const uint64_t bytes = runs->end - from >= 8 ? load64(from) : load_some(from, runs->end);
    return (uint32_t)(bytes >> (bit & 7) & ((UINT64_C(1) << runs->bits) - 1));
}

/* Values from the beginning of a byte on, eight at a time: as many of ``count`` as have 8 bytes behind them. */
static inline int64_t unpack_eights(const uint8_t *from, const uint8_t *end, const int bits, int64_t count, uint32_t *out) {
    const int in_word = bits <= 8 ? 8 : bits <= 16 ? 4 : 2; /* with the bits before the first they fit into 64 */
    const uint32_t mask = (UINT32_C(1) << bits) - 1;
    int64_t done = 0;
    for (; count - done >= 8 && end - from >= bits + 8; done += 8, from += bits)
        for (int i = 0; i < 8; i += in_word) {
            const uint64_t word = load64(from + (i * bits >> 3)) >> (i * bits & 7);
            for (int k = 0; k < in_word; k++) out[done + i + k] = (uint32_t)(word >> k * bits) & mask;
        }
    return done;
}

#define EIGHTS(BITS) \
    case BITS: return unpack_eights(from, end, BITS, count, out);

static int64_t unpack_some(const uint8_t *from, const uint8_t *end, int64_t bits, int64_t count, uint32_t *out) {
    switch (bits) {
        EIGHTS(1) EIGHTS(2) EIGHTS(3) EIGHTS(4) EIGHTS(5) EIGHTS(6) EIGHTS(7) EIGHTS(8)
        EIGHTS(9) EIGHTS(10) EIGHTS(11) EIGHTS(12) EIGHTS(13) EIGHTS(14) EIGHTS(15) EIGHTS(16)
        EIGHTS(17) EIGHTS(18) EIGHTS(19) EIGHTS(20) EIGHTS(21) EIGHTS(22) EIGHTS(23) EIGHTS(24)
    default: return 0;
    }
}

/* The next ``count`` values of a packed run that has them. */
static void unpack(const Runs *runs, int64_t count, uint32_t *out) {
    const uint8_t *const from = runs->packed;
    const int64_t bits = runs->bits;
    const uint64_t mask = (UINT64_C(1) << bits) - 1;
    uint64_t bit = (uint64_t)runs->bit;
    if ((bit & 7) == 0) {
        const int64_t done = unpack_some(from + (bit >> 3), runs->end, bits, count, out);
        count -= done, out += done, bit += (uint64_t)(done * bits);
    }
    const int64_t room = (runs->end - from - 7) * 8 - (int64_t)bit;
    const int64_t safe = room > 0 ? least(count, (room - 1) / bits + 1) : 0; /* so many have 8 bytes to be loaded */
    for (int64_t i = 0; i < safe; i++, bit += (uint64_t)bits)
        out[i] = (uint32_t)(load64(from + (bit >> 3)) >> (bit & 7) & mask);
    for (int64_t i = safe; i < count; i++, bit += (uint64_t)bits) out[i] = packed_at(runs, (int64_t)bit);
}

static int64_t read_runs(Runs *runs, int64_t count, uint32_t *out) {
    while (count) {
        if (next_run(runs) < 0) return WRONG;
        const int64_t now = least(count, runs->left);
        if (runs->bit != NONE)
            unpack(runs, now, out);
        else
            for (int64_t i = 0; i < now; i++) out[i] = (uint32_t)runs->value;
        pass_run(runs, now);
        count -= now, out += now;
    }
    return 0;
}

static int64_t pass_runs(Runs *runs, int64_t count) {
    while (count) {
        if (next_run(runs) < 0) return WRONG;
        const int64_t now = least(count, runs->left);
        pass_run(runs, now);
        count -= now;
    }
    return 0;
}

/* ---------------------------------------------------------------- numbers as differences */

typedef struct {
    const uint8_t *at, *end, *widths, *packed;
    int64_t left, blocks, block; /* values; miniblocks in a block, and which one is next */
    int64_t size, in_block;      /* values in a miniblock, and how many the one that is being read has left */
    int64_t bit, bits;
    uint64_t last, least;
    int64_t begun;
} Deltas;

static int64_t open_deltas(Deltas *deltas, const uint8_t *from, const uint8_t *end) {
    Bytes bytes = {from, end, FINE};
    const uint64_t values = varint(&bytes), blocks = varint(&bytes), total = varint(&bytes);
    const uint64_t first = (uint64_t)unzigzag(varint(&bytes));
    if (bytes.state != FINE || values > INT32_MAX || blocks == 0 || blocks > values || total > INT32_MAX) return WRONG;
    if (values % blocks || values / blocks % 32) return WRONG;
    *deltas = (Deltas){.at = bytes.at, .end = end, .left = (int64_t)total, .blocks = (int64_t)blocks};
    deltas->block = deltas->blocks;
    deltas->size = (int64_t)(values / blocks);
    deltas->last = first;
    return 0;
}

static int64_t next_block(Deltas *deltas) {
    if (deltas->block == deltas->blocks) {
        Bytes bytes = {deltas->at, deltas->end, FINE};
        deltas->least = (uint64_t)unzigzag(varint(&bytes));
        if (bytes.state != FINE || deltas->blocks > deltas->end - bytes.at) return WRONG;
        deltas->widths = bytes.at;
        deltas->at = bytes.at + deltas->blocks;
        deltas->block = 0;
    }
    deltas->bits = deltas->widths[deltas->block++];
    if (deltas->bits > 64 || deltas->size / 8 * deltas->bits > deltas->end - deltas->at) return WRONG;
    deltas->packed = deltas->at;
    deltas->at += deltas->size / 8 * deltas->bits;
    deltas->bit = 0;
    deltas->in_block = deltas->size;
    return 0;
}

static inline uint64_t delta_at(const Deltas *deltas, int64_t bit) {
    const uint8_t *const from = deltas->packed + (bit >> 3);
    const int64_t shift = bit & 7, bits = deltas->bits;
    uint64_t found = (deltas->end - from >= 8 ? load64(from) : load_some(from, deltas->end)) >> shift;
    if (shift + bits > 64) found |= load_some(from + 8, from + 9) << (64 - shift);
    return bits == 64 ? found : found & ((UINT64_C(1) << bits) - 1);
}

static int64_t read_deltas(Deltas *deltas, int64_t count, int64_t *out) {
    if (count > deltas->left) return WRONG;
    deltas->left -= count;
    if (count && !deltas->begun) {
        deltas->begun = 1;
        *out++ = (int64_t)deltas->last;
        count--;
    }
    while (count) {
        if (deltas->in_block == 0 && next_block(deltas) < 0) return WRONG;
        const int64_t now = least(count, deltas->in_block);
        uint64_t last = deltas->last;
        for (int64_t i = 0; i < now; i++) {
            last += deltas->least + (deltas->bits ? delta_at(deltas, deltas->bit + i * deltas->bits) : 0);
            out[i] = (int64_t)last;
        }
        deltas->last = last;
        deltas->bit += now * deltas->bits;
        deltas->in_block -= now;
        count -= now, out += now;
    }
    return 0;
}

/* Where the differences end. */
static const uint8_t *behind_deltas(Deltas deltas) {
    for (int64_t left = deltas.left - 1; left > 0; left -= deltas.size)
        if (next_block(&deltas) < 0) return NULL;
    return deltas.at;
}

/* ---------------------------------------------------------------- pages */

enum { PLAIN, WORDS, DELTA, SPLIT, BITS, BOOLEANS, LENGTHS, PREFIXES }; /* where values come from */
enum { NO_CODEC, SNAPPY, LZ4 };
enum { RLE = 3, DATA_2 = 3 }; /* Parquet's numbers of an encoding, and of a type of pages */

typedef struct {
    int64_t source, width; /* of a value that is fixed */
    const uint8_t *at, *end;
    int64_t bit, stride; /* BITS, SPLIT: values that were read; values between two bytes of one */
    Runs levels, codes;
    Deltas lengths, prefixes;
    uint8_t *last; /* PREFIXES: the value before, in the memory of the caller */
    int64_t last_size, last_room;
    int64_t taken, given; /* by the last call for texts: values that were read, and those of them that were given */
} Page;

API int64_t penstock_page_bytes(void) { return sizeof(Page); }

/* Begins a page. ``levels``: of ``level_size`` bytes; NULL: no row may be null. ``last``: with room for every byte of
 * ``values``, where they share prefixes. */
API int64_t penstock_page_open(Page *page, const uint8_t *levels, int64_t level_size, const uint8_t *values, int64_t size,
                               int64_t source, int64_t width, uint8_t *last, int64_t last_room) {
    const uint8_t *end = values + size;
    memset(page, 0, sizeof(*page));
    page->source = source;
    page->width = width;
    if (levels) open_runs(&page->levels, levels, levels + level_size, 1);
    if (size == 0) { /* of a page whose rows are all null, if any */
        open_runs(&page->codes, values, values, 0);
    } else if (source == WORDS) {
        if (*values > 32) return WRONG;
        open_runs(&page->codes, values + 1, end, *values);
    } else if (source == BOOLEANS) {
        if (size < 4) return WRONG;
        const int64_t bytes = (int64_t)load_some(values, values + 4);
        if (bytes > size - 4) return WRONG;
        open_runs(&page->codes, values + 4, values + 4 + bytes, 1);
    } else if (source == DELTA) {
        return open_deltas(&page->lengths, values, end);
    } else if (source == SPLIT) {
        if (size % width) return WRONG;
        page->stride = size / width;
    } else if (source == PREFIXES) {
        if (open_deltas(&page->prefixes, values, end) < 0) return WRONG;
        if (!(values = behind_deltas(page->prefixes))) return WRONG;
    }
    if (size && (source == LENGTHS || source == PREFIXES)) {
        if (open_deltas(&page->lengths, values, end) < 0) return WRONG;
        if (!(values = behind_deltas(page->lengths))) return WRONG;
    }
    page->at = values;
    page->end = end;
    page->last = last;
    page->last_room = last_room;
    return 0;
}

/* Begins a page as it lies in the file: ``header`` says of how many bytes ``body`` is. It is decompressed into ``room``, if
 * there is a codec, which is as large as ``header`` says. For all sources but PREFIXES. */
API int64_t penstock_page_begin(Page *page, const int64_t *header, const uint8_t *body, int64_t is_nullable, int64_t codec,
                                int64_t source, int64_t width, uint8_t *room) {
    const uint8_t *levels = NULL, *values = body;
    const int is_second = header[PAGE_TYPE] == DATA_2;
    int64_t size = header[COMPRESSED], made = header[UNCOMPRESSED], level_size = 0;
    if (size < 0 || made < 0 || source == PREFIXES) return WRONG;
    if (is_second) {
        level_size = header[LEVEL_BYTES];
        if (header[REPEAT_BYTES] != 0 || header[ROWS] != header[VALUES] || level_size < 0) return WRONG;
        if (level_size > size || level_size > made || (level_size && !is_nullable)) return WRONG;
        levels = body;
        values += level_size, size -= level_size, made -= level_size;
    }
    if (codec == NO_CODEC || (is_second && !header[IS_COMPRESSED])) {
        if (size != made) return WRONG;
    } else if (made) {
        if ((codec == SNAPPY ? penstock_snappy : penstock_lz4)(values, size, room, made) < 0) return WRONG;
        values = room;
    }
    if (is_nullable && !is_second) {
        if (header[LEVEL_ENCODING] != RLE || made < 4) return WRONG;
        level_size = (int64_t)load_some(values, values + 4);
        if (level_size > made - 4) return WRONG;
        levels = values + 4;
        values += 4 + level_size, made -= 4 + level_size;
    }
    return penstock_page_open(page, is_nullable ? levels : NULL, level_size, values, made, source, width, NULL, 0);
}

/* For each of the next rows, whether it is valid; and how many are. */
API int64_t penstock_page_levels(Page *page, int64_t rows, uint8_t *valid) {
    Runs *const runs = &page->levels;
    uint32_t block[CODES];
    int64_t count = 0;
    while (rows) {
        if (next_run(runs) < 0) return WRONG;
        int64_t now = least(rows, runs->left);
        if (runs->bit == NONE) {
            memset(valid, (int)runs->value, (size_t)now);
            count += runs->value * now;
        } else {
            now = least(now, CODES);
            unpack(runs, now, block);
            for (int64_t i = 0; i < now; i++) count += valid[i] = (uint8_t)block[i];
        }
        pass_run(runs, now);
        rows -= now, valid += now;
    }
    return count;
}

/* Which of the picked rows are valid, and where these stand among the valid ones; how many they are comes back. */
API int64_t penstock_page_places(const uint8_t *valid, const int64_t *picks, int64_t base, int64_t count, uint8_t *picked,
                                 int64_t *places) {
    int64_t row = 0, before = 0, found = 0;
    for (int64_t i = 0; i < count; i++) {
        for (const int64_t place = picks[i] - base; row < place; row++) before += valid[row];
        picked[i] = valid[row];
        if (valid[row]) places[found++] = before;
    }
    return found;
}

/* ---------------------------------------------------------------- fixed values */

enum { SAME, TO_8, TO_16, TO_64, TO_128, BIG_TO_64, BIG_TO_128 }; /* what is made of a value */

static inline int64_t from_big(const uint8_t *from, int64_t width) {
    int64_t found = (int8_t)from[0];
    for (int64_t i = 1; i < width; i++) found = (int64_t)((uint64_t)found << 8 | from[i]);
    return found;
}

static inline void store_128(uint8_t *to, int64_t low, int64_t high) {
    memcpy(to, &low, 8);
    memcpy(to + 8, &high, 8);
}

static inline void big_to_128(const uint8_t *from, int64_t width, uint8_t *to) {
    if (width <= 8) {
        const int64_t found = from_big(from, width);
        store_128(to, found, found >> 63);
    } else {
        uint64_t low = 0;
        for (int64_t i = width - 8; i < width; i++) low = low << 8 | from[i];
        store_128(to, (int64_t)low, from_big(from, width - 8));
    }
}

#define EACH(STEP)                                                     \
    if (picks)                                                         \
        for (int64_t i = 0; i < count; i++) {                          \
            const uint8_t *const one = from + (picks[i] - base) * width; \
            STEP;                                                      \
        }                                                              \
    else                                                               \
        for (int64_t i = 0; i < count; i++) {                          \
            const uint8_t *const one = from + i * width;               \
            STEP;                                                      \
        }

/* ``wide``: a value of at most 8 bytes, the largest first. The last ones may lie too near the end to be loaded as 8. */
#define EACH_BIG(STEP)                                                                                      \
    {                                                                                                       \
        const int64_t all = count, shift = 64 - 8 * width;                                                  \
        while (count && end - (from + (picks ? picks[count - 1] - base : count - 1) * width) < 8) count--;  \
        EACH(wide = (int64_t)__builtin_bswap64(load64(one)) >> shift; STEP)                                 \
        for (int64_t i = count; i < all; i++) {                                                             \
            wide = from_big(from + (picks ? picks[i] - base : i) * width, width);                           \
            STEP;                                                                                           \
        }                                                                                                   \
    }

#define COPIES(WIDTH) \
    case WIDTH: EACH(memcpy(to + i * WIDTH, one, WIDTH)) break;

/* Values one behind the other, as the kind says. ``from`` has all that are picked; up to ``end`` may be read. */
static void convert(int64_t kind, int64_t width, const uint8_t *from, const uint8_t *end, const int64_t *picks,
                    int64_t base, int64_t count, uint8_t *to) {
    int32_t narrow;
    int64_t wide;
    switch (kind) {
    case SAME:
        if (!picks) {
            memcpy(to, from, (size_t)(count * width));
            return;
        }
        switch (width) {
            COPIES(1)
            COPIES(2)
            COPIES(4)
            COPIES(8)
            COPIES(16)
        default:
            EACH(memcpy(to + i * width, one, (size_t)width))
        }
        break;
    case TO_8:
        EACH(to[i] = *one)
        break;
    case TO_16:
        EACH(memcpy(to + 2 * i, one, 2))
        break;
    case TO_64:
        EACH(memcpy(&narrow, one, 4); wide = narrow; memcpy(to + 8 * i, &wide, 8))
        break;
    case TO_128:
        if (width == 4)
            EACH(memcpy(&narrow, one, 4); wide = narrow; store_128(to + 16 * i, wide, wide >> 63))
        else
            EACH(memcpy(&wide, one, 8); store_128(to + 16 * i, wide, wide >> 63))
        break;
    case BIG_TO_64:
        EACH_BIG(memcpy(to + 8 * i, &wide, 8))
        break;
    default:
        if (width <= 8)
            EACH_BIG(store_128(to + 16 * i, wide, wide >> 63))
        else
            EACH(big_to_128(one, width, to + 16 * i))
    }
}

#define GATHER(WIDTH)                                                                                            \
    case WIDTH:                                                                                                  \
        for (int64_t i = 0; i < count; i++) memcpy(to + i * WIDTH, words + (uint64_t)codes[i] * WIDTH, WIDTH);   \
        break;

static int64_t gather(const uint8_t *words, int64_t known, int64_t width, const uint32_t *codes, int64_t count,
                      uint8_t *to) {
    uint32_t beyond = 0; /* its highest bit: whether a code is none of ``known``, which are fewer than 2^31 */
    for (int64_t i = 0; i < count; i++) beyond |= codes[i] | ((uint32_t)known - 1 - codes[i]);
    if (beyond >> 31) return WRONG;
    switch (width) {
        GATHER(1)
        GATHER(2)
        GATHER(4)
        GATHER(8)
        GATHER(16)
    default:
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * width, words + (int64_t)codes[i] * width, (size_t)width);
    }
    return 0;
}

/* The codes of the picked ones of the next ``values``, ``count`` of them from the first on. */
static int64_t pick_codes(Runs *runs, int64_t *passed, const int64_t *picks, int64_t base, int64_t count,
                          uint32_t *codes) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = picks[i] - base;
        if (pass_runs(runs, place - *passed) < 0 || next_run(runs) < 0) return WRONG;
        *passed = place;
        codes[i] = runs->bit == NONE ? (uint32_t)runs->value : packed_at(runs, runs->bit);
    }
    return 0;
}

static int64_t words_of(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count,
                        const uint8_t *words, int64_t known, int64_t width, uint8_t *to) {
    uint32_t codes[CODES];
    int64_t passed = 0;
    for (int64_t done = 0; done < count; done += CODES) {
        const int64_t now = least(count - done, CODES);
        const int64_t fine = picks ? pick_codes(&page->codes, &passed, picks + done, base, now, codes)
                                   : read_runs(&page->codes, now, codes);
        if (fine < 0 || gather(words, known, width, codes, now, to + done * width) < 0) return WRONG;
    }
    return picks ? pass_runs(&page->codes, values - passed) : 0;
}

/* The next values as they lie in a page that is not plain. */
static int64_t next_values(Page *page, int64_t count, uint8_t *to) {
    uint32_t codes[BLOCK];
    int64_t numbers[BLOCK];
    switch (page->source) {
    case DELTA:
        if (read_deltas(&page->lengths, count, numbers) < 0) return WRONG;
        for (int64_t i = 0; i < count; i++) memcpy(to + i * page->width, numbers + i, (size_t)page->width);
        return 0;
    case SPLIT:
        if (count > page->stride - page->bit) return WRONG;
        for (int64_t byte = 0; byte < page->width; byte++)
            for (int64_t i = 0; i < count; i++)
                to[i * page->width + byte] = page->at[byte * page->stride + page->bit + i];
        page->bit += count;
        return 0;
    case BITS:
        if (count > (page->end - page->at) * 8 - page->bit) return WRONG;
        for (int64_t i = 0; i < count; i++, page->bit++) to[i] = page->at[page->bit >> 3] >> (page->bit & 7) & 1;
        return 0;
    default:
        if (page->source != BOOLEANS || read_runs(&page->codes, count, codes) < 0) return WRONG;
        for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)codes[i];
        return 0;
    }
}

/* Of the next ``values`` the picked ones, ``count`` of them, as ``kind`` says; ``words`` are made already. */
API int64_t penstock_page_numbers(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count,
                                  int64_t kind, const uint8_t *words, int64_t known, int64_t word_width, uint8_t *to) {
    const int64_t width = page->width;
    if (page->source == PLAIN) {
        if (values > (page->end - page->at) / width) return WRONG;
        convert(kind, width, page->at, page->end, picks, base, count, to);
        page->at += values * width;
        return 0;
    }
    if (page->source == WORDS) return words_of(page, values, picks, base, count, words, known, word_width, to);
    uint8_t block[BLOCK * WIDEST];
    int64_t chosen[BLOCK];
    if (width > WIDEST) return WRONG;
    for (int64_t start = 0; start < values; start += BLOCK) {
        const int64_t now = least(values - start, BLOCK);
        int64_t found = now;
        if (next_values(page, now, block) < 0) return WRONG;
        if (picks) {
            for (found = 0; count && *picks - base - start < now; count--) chosen[found++] = *picks++ - base - start;
        }
        convert(kind, width, block, block + sizeof(block), picks ? chosen : NULL, 0, found, to);
        to += found * word_width;
    }
    return 0;
}

/* ---------------------------------------------------------------- texts */

/* Where the next texts lie: ``count`` of them, one where prefixes are shared. */
static int64_t next_texts(Page *page, int64_t count, const int32_t *bounds, const uint8_t *words, int64_t known,
                          const uint8_t **texts, int64_t *sizes) {
    uint32_t codes[BLOCK];
    int64_t prefix;
    switch (page->source) {
    case PLAIN:
        for (int64_t i = 0; i < count; i++) {
            if (page->end - page->at < 4) return WRONG;
            uint32_t size;
            memcpy(&size, page->at, 4);
            page->at += 4;
            if (size > page->end - page->at) return WRONG;
            texts[i] = page->at;
            sizes[i] = size;
            page->at += size;
        }
        return 0;
    case WORDS:
        if (read_runs(&page->codes, count, codes) < 0) return WRONG;
        for (int64_t i = 0; i < count; i++) {
            if (codes[i] >= known) return WRONG;
            texts[i] = words + bounds[codes[i]];
            sizes[i] = bounds[codes[i] + 1] - bounds[codes[i]];
        }
        return 0;
    case LENGTHS:
        if (read_deltas(&page->lengths, count, sizes) < 0) return WRONG;
        for (int64_t i = 0; i < count; i++) {
            if (sizes[i] < 0 || sizes[i] > page->end - page->at) return WRONG;
            texts[i] = page->at;
            page->at += sizes[i];
        }
        return 0;
    default:
        if (page->source != PREFIXES || count != 1) return WRONG;
        if (read_deltas(&page->prefixes, 1, &prefix) < 0 || read_deltas(&page->lengths, 1, sizes) < 0) return WRONG;
        if (prefix < 0 || prefix > page->last_size || *sizes < 0 || *sizes > page->end - page->at) return WRONG;
        if (*sizes > page->last_room - prefix) return WRONG;
        memcpy(page->last + prefix, page->at, (size_t)*sizes);
        page->at += *sizes;
        *texts = page->last;
        *sizes = page->last_size = prefix + *sizes;
        return 0;
    }
}

/* Of the next ``values`` texts the picked ones, ``count`` of them: their ends from ``offset`` on, and their bytes. As
 * many as there is ``room`` for: ``taken`` and ``given`` say how many, 1 comes back if it was too small. ``bounds`` and
 * ``words``: the dictionary's. */
API int64_t penstock_page_texts(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count,
                                const int32_t *bounds, const uint8_t *words, int64_t known, int32_t *ends, uint8_t *to,
                                int64_t offset, int64_t room) {
    const uint8_t *texts[BLOCK];
    int64_t sizes[BLOCK];
    const int64_t most = page->source == PREFIXES ? 1 : BLOCK;
    const uint8_t *const safe = page->source == WORDS ? words + bounds[known] : page->end;
    const int is_near = page->source != PREFIXES; /* what lies behind a text may be read up to ``safe`` */
    int64_t given = 0;
    for (int64_t start = 0; start < values;) {
        const Page before = *page;
        const int64_t now = least(values - start, most);
        if (next_texts(page, now, bounds, words, known, texts, sizes) < 0) return WRONG;
        for (int64_t i = 0; i < now; i++) {
            if (picks && (given == count || picks[given] - base != start + i)) continue;
            const int64_t size = sizes[i];
            if (size > room - offset) {
                *page = before;
                page->taken = start + i;
                page->given = given;
                return i && next_texts(page, i, bounds, words, known, texts, sizes) < 0 ? WRONG : 1;
            }
            if (size <= SHORT_TEXT && room - offset >= SHORT_TEXT && is_near && safe - texts[i] >= SHORT_TEXT)
                memcpy(to + offset, texts[i], SHORT_TEXT);
            else
                memcpy(to + offset, texts[i], (size_t)size);
            offset += size;
            ends[given++] = (int32_t)offset;
        }
        start += now;
    }
    page->taken = values;
    page->given = given;
    return 0;
}

/* Whether each text, up to its end, has this size. */
API int64_t penstock_page_same_size(const int32_t *ends, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; i++)
        if (ends[i] != (i + 1) * size) return WRONG;
    return 0;
}

/* Texts as numbers of 128 bits, the largest byte first: decimals. */
API int64_t penstock_page_decimals(const int32_t *ends, const uint8_t *texts, int64_t count, uint8_t *to) {
    int64_t begin = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t size = ends[i] - begin;
        if (size < 1 || size > 16) return WRONG;
        big_to_128(texts + begin, size, to + 16 * i);
        begin = ends[i];
    }
    return 0;
}

/* ---------------------------------------------------------------- nulls
 *
 * ``count`` values go to the places of the valid ones of ``rows``, from the last one on. */

#define SPREAD(WIDTH)                                                         \
    case WIDTH:                                                               \
        for (int64_t row = rows; row-- > 0;) {                                \
            if (valid[row])                                                   \
                memmove(to + row * WIDTH, to + --count * WIDTH, WIDTH);       \
            else                                                              \
                memset(to + row * WIDTH, 0, WIDTH);                           \
        }                                                                     \
        break;

API void penstock_page_spread(uint8_t *to, int64_t width, const uint8_t *valid, int64_t rows, int64_t count) {
    switch (width) {
        SPREAD(1)
        SPREAD(2)
        SPREAD(4)
        SPREAD(8)
        SPREAD(16)
    default:
        for (int64_t row = rows; row-- > 0;) {
            if (valid[row])
                memmove(to + row * width, to + --count * width, (size_t)width);
            else
                memset(to + row * width, 0, (size_t)width);
        }
    }
}

/* All of the next ``rows``, nulls among them unless ``valid`` is NULL; how many are valid. The rest as for
 * penstock_page_numbers. */
API int64_t penstock_page_rows(Page *page, int64_t rows, uint8_t *valid, int64_t kind, const uint8_t *words, int64_t known,
                               int64_t width, uint8_t *to) {
    const int64_t found = valid ? penstock_page_levels(page, rows, valid) : rows;
    if (found < 0 || penstock_page_numbers(page, found, NULL, 0, found, kind, words, known, width, to) < 0) return WRONG;
    if (found < rows) penstock_page_spread(to, width, valid, rows, found);
    return found;
}

/* The same for the ends of texts; the first text begins at ``offset``. */
API void penstock_page_spread_ends(int32_t *ends, int64_t offset, const uint8_t *valid, int64_t rows, int64_t count) {
    for (int64_t row = rows; row-- > 0;) {
        ends[row] = count ? ends[count - 1] : (int32_t)offset;
        count -= valid[row];
    }
}
