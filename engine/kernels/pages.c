/* Pages of flat Parquet columns, decoded: ``penstock_column_read``. page_stream.py gives it what it needs.

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
#define FEW 16     /* where one of so many rows is picked, or fewer, the others are passed */
#define WIDEST 32  /* bytes of a fixed value that goes through a block */
#define SHORT_TEXT 32

/* Changes with every change of a function's name, arguments or meaning. */
API int64_t penstock_pages(void) { return 5; }

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
enum { DATA, INDEX, DICTIONARY, DATA_2 }; /* Parquet's numbers of types of pages */
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

/* A number, of 32 bits mostly; one of another type is not the field that was meant. */
static void number_field(Bytes *bytes, int type, int meant, int64_t *found) {
    if (type == meant)
        *found = unzigzag(varint(bytes));
    else
        bytes->state = BAD;
}

/* The header of a data page of either version, or of a dictionary, which is inside the page's. */
static void inner_header(Bytes *bytes, int64_t *header, int64_t which) {
    static const int8_t FIRST[] = {VALUES, ENCODING, LEVEL_ENCODING, NONE}; /* of a dictionary the first two */
    static const int8_t SECOND[] = {VALUES, NONE, ROWS, ENCODING, LEVEL_BYTES, REPEAT_BYTES};
    const int is_second = which == 8;
    const int8_t *const places = is_second ? SECOND : FIRST;
    const int64_t known = is_second ? 6 : which == 7 ? 2 : 4;
    int64_t id = 0;
    for (int type; (type = next_field(bytes, &id)) != STOP && bytes->state == FINE;) {
        int64_t unused;
        if (is_second && id == 7 && (type == TRUE || type == FALSE))
            header[IS_COMPRESSED] = type == TRUE;
        else if (id >= 1 && id <= known)
            number_field(bytes, type, I32, places[id - 1] == NONE ? &unused : header + places[id - 1]);
        else
            pass_value(bytes, type, 0, 2);
    }
}

/* Reads a page's header into ``header``: HEADER_FIELDS numbers, -1 what it lacks. Its bytes come back; 0: more of them are
 * needed. Fields that are known have their types, and the page has the header of its type, once. */
static int64_t page_header(const uint8_t *from, int64_t size, int64_t *header) {
    static const int8_t PLACES[] = {PAGE_TYPE, UNCOMPRESSED, COMPRESSED, CHECKSUM};
    static const int8_t INNER[] = {5, 6, 7, 8}; /* by the type of the page */
    Bytes bytes = {from, from + size, FINE};
    int64_t id = 0, inner = NONE;
    for (int field = 0; field < HEADER_FIELDS; field++) header[field] = NONE;
    header[HAS_CHECKSUM] = 0;
    header[IS_COMPRESSED] = 1;
    for (int type; (type = next_field(&bytes, &id)) != STOP && bytes.state == FINE;) {
        if (id >= 1 && id <= 4) {
            header[HAS_CHECKSUM] |= id == 4;
            number_field(&bytes, type, I32, header + PLACES[id - 1]);
        } else if (id >= 5 && id <= 8) {
            if (type != STRUCT || inner != NONE) return WRONG;
            inner = id;
            if (id == 6)
                pass_value(&bytes, type, 0, 1);
            else
                inner_header(&bytes, header, id);
        } else {
            pass_value(&bytes, type, 0, 1);
        }
    }
    if (bytes.state == TOO_SHORT) return 0;
    if (bytes.state == BAD || header[PAGE_TYPE] < DATA || header[PAGE_TYPE] > DATA_2) return WRONG;
    return inner == INNER[header[PAGE_TYPE]] ? bytes.at - from : WRONG;
}

/* ---------------------------------------------------------------- footers: where the indexes of pages lie */

enum { OFFSETS_AT, OFFSETS_SIZE, RANGES_AT, RANGES_SIZE, ONLY_WORDS, INDEX_FIELDS };

/* How many structs stand in the list that the next field is. */
static uint64_t structs(Bytes *bytes, int type) {
    const uint8_t head = type == LIST ? one_byte(bytes) : 0;
    uint64_t count = head >> 4;
    if (count == 15) count = varint(bytes);
    if (type != LIST || (count && (head & 15) != STRUCT)) bytes->state = BAD;
    return count;
}

/* Whether all pages of values have codes of words; NONE: it is not said of any. */
static void only_words(Bytes *bytes, int type, int64_t *found) {
    for (uint64_t count = structs(bytes, type); count && bytes->state == FINE; count--) {
        int64_t id = 0, page = NONE, encoding = NONE;
        for (int inner; (inner = next_field(bytes, &id)) != STOP && bytes->state == FINE;) {
            if (id == 1 || id == 2)
                number_field(bytes, inner, I32, id == 1 ? &page : &encoding);
            else
                pass_value(bytes, inner, 0, 1);
        }
        if (page == DATA || page == DATA_2) *found = *found != 0 && (encoding == 2 || encoding == 8);
    }
}

static void column_places(Bytes *bytes, int64_t *places) {
    static const int8_t TYPES[] = {I64, I32, I64, I32};
    int64_t id = 0;
    for (int type; (type = next_field(bytes, &id)) != STOP && bytes->state == FINE;) {
        if (id >= 4 && id <= 7) {
            number_field(bytes, type, TYPES[id - 4], places + id - 4);
        } else if (id == 3 && type == STRUCT) {
            int64_t inner_id = 0;
            for (int inner; (inner = next_field(bytes, &inner_id)) != STOP && bytes->state == FINE;) {
                if (inner_id == 13)
                    only_words(bytes, inner, places + ONLY_WORDS);
                else
                    pass_value(bytes, inner, 0, 1);
            }
        } else {
            pass_value(bytes, type, 0, 1);
        }
    }
}

/* Of so many row groups of so many columns: INDEX_FIELDS numbers of each column, NONE what the footer does not say. */
API int64_t penstock_index_places(const uint8_t *footer, int64_t size, int64_t groups, int64_t columns, int64_t *places) {
    Bytes bytes = {footer, footer + size, FINE};
    int64_t id = 0;
    for (int64_t i = 0; i < groups * columns * INDEX_FIELDS; i++) places[i] = NONE;
    for (int type; (type = next_field(&bytes, &id)) != STOP && bytes.state == FINE;) {
        if (id != 4) {
            pass_value(&bytes, type, 0, 1);
            continue;
        }
        if (structs(&bytes, type) != (uint64_t)groups) return WRONG;
        for (int64_t group = 0; group < groups && bytes.state == FINE; group++) {
            int64_t inner_id = 0;
            for (int inner; (inner = next_field(&bytes, &inner_id)) != STOP && bytes.state == FINE;) {
                if (inner_id != 1) {
                    pass_value(&bytes, inner, 0, 1);
                    continue;
                }
                if (structs(&bytes, inner) != (uint64_t)columns) return WRONG;
                for (int64_t i = 0; i < columns && bytes.state == FINE; i++)
                    column_places(&bytes, places + (group * columns + i) * INDEX_FIELDS);
            }
        }
    }
    return bytes.state == FINE ? 0 : WRONG;
}

/* ---------------------------------------------------------------- footers: what pyarrow asks of them without a net */

enum { BYTE_ARRAY = 6, LAST_CODEC = 7, DEEPEST_SCHEMA = 200 };
enum { REQUIRED, OPTIONAL, REPEATED };

typedef struct {
    int64_t type, definition, repetition; /* the highest levels */
} Leaf;

typedef struct {
    Leaf *found;
    int64_t count, room;
} Leaves;

/* An element of the schema, of which so many are left, and what is below it. */
static void schema_element(Bytes *bytes, uint64_t *left, Leaves *leaves, Leaf above, int depth) {
    int64_t id = 0, type = NONE, children = 0, repeats = REQUIRED;
    if (!*left || depth > DEEPEST_SCHEMA) bytes->state = BAD;
    if (bytes->state != FINE) return;
    --*left;
    for (int field; (field = next_field(bytes, &id)) != STOP && bytes->state == FINE;) {
        if (id == 1 || id == 3 || id == 5)
            number_field(bytes, field, I32, id == 1 ? &type : id == 3 ? &repeats : &children);
        else
            pass_value(bytes, field, 0, 1);
    }
    if (depth) above.definition += repeats != REQUIRED, above.repetition += repeats == REPEATED;
    if (children <= 0 && type != NONE) {
        if (leaves->count == leaves->room) {
            bytes->state = BAD;
            return;
        }
        above.type = type;
        leaves->found[leaves->count++] = above;
    }
    for (; children > 0 && bytes->state == FINE; children--) schema_element(bytes, left, leaves, above, depth + 1);
}

/* Whether a histogram, if there is one, has all of its levels. */
static int levels_fit(Bytes *bytes, int type, int64_t highest) {
    const uint8_t head = type == LIST ? one_byte(bytes) : 0;
    uint64_t count = head >> 4;
    if (count == 15) count = varint(bytes);
    if (type != LIST) bytes->state = BAD;
    for (uint64_t i = 0; i < count && bytes->state == FINE; i++) pass_value(bytes, head & 15, 1, 1);
    return !count || count == (uint64_t)highest + 1;
}

static int column_fits(Bytes *bytes, Leaf leaf) {
    int64_t id = 0, type = NONE, codec = NONE;
    int fits = 1;
    for (int field; (field = next_field(bytes, &id)) != STOP && bytes->state == FINE;) {
        if (id == 1 || id == 4) {
            number_field(bytes, field, I32, id == 1 ? &type : &codec);
        } else if (id == 16 && field == STRUCT) {
            int64_t inner_id = 0;
            for (int inner; (inner = next_field(bytes, &inner_id)) != STOP && bytes->state == FINE;) {
                if (inner_id == 2 || inner_id == 3) {
                    fits &= levels_fit(bytes, inner, inner_id == 2 ? leaf.repetition : leaf.definition);
                } else {
                    fits &= inner_id != 1 || leaf.type == BYTE_ARRAY;
                    pass_value(bytes, inner, 0, 2);
                }
            }
        } else {
            pass_value(bytes, field, 0, 1);
        }
    }
    return fits && type == leaf.type && codec >= 0 && codec <= LAST_CODEC;
}

/* Whether each column of each row group has the type that the schema says, a codec that there is, and histograms of its
 * levels: pyarrow ends the process where it is asked for one that has not. ``room``: three numbers for each of so many
 * columns. WRONG: not understood. */
API int64_t penstock_footer_fits(const uint8_t *footer, int64_t size, int64_t columns, int64_t *room) {
    Bytes bytes = {footer, footer + size, FINE};
    Leaves leaves = {(Leaf *)room, 0, columns};
    int64_t id = 0, fits = 1;
    for (int type; (type = next_field(&bytes, &id)) != STOP && bytes.state == FINE;) {
        if (id == 2) {
            uint64_t left = structs(&bytes, type);
            leaves.count = 0;
            schema_element(&bytes, &left, &leaves, (Leaf){NONE, 0, 0}, 0);
            if (left) return WRONG;
        } else if (id == 4) {
            for (uint64_t groups = structs(&bytes, type); groups && bytes.state == FINE; groups--) {
                int64_t inner_id = 0;
                for (int inner; (inner = next_field(&bytes, &inner_id)) != STOP && bytes.state == FINE;) {
                    if (inner_id != 1) {
                        pass_value(&bytes, inner, 0, 1);
                        continue;
                    }
                    if (structs(&bytes, inner) != (uint64_t)leaves.count) return WRONG;
                    for (int64_t i = 0; i < leaves.count && bytes.state == FINE; i++) {
                        int64_t chunk_id = 0;
                        for (int chunk; (chunk = next_field(&bytes, &chunk_id)) != STOP && bytes.state == FINE;) {
                            if (chunk_id == 3 && chunk == STRUCT)
                                fits &= column_fits(&bytes, leaves.found[i]);
                            else
                                pass_value(&bytes, chunk, 0, 1);
                        }
                    }
                }
            }
        } else {
            pass_value(&bytes, type, 0, 1);
        }
    }
    return bytes.state == FINE ? fits : WRONG;
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

/* Short elements of Snappy's where both sides go on for long: a literal and the copy behind it are of one word, and which of
 * its two short forms a copy has, which cannot be foretold, makes no branch. Stops at another element, and at a wrong one. */
static void snappy_near(const uint8_t **at, const uint8_t *end, uint8_t **made, const uint8_t *begin, const uint8_t *to_end) {
    const uint8_t *from = *at;
    uint8_t *to = *made;
    while (end - from >= 64 && to_end - to >= 64) {
        uint64_t next = load64(from);
        if ((next & 3) == 0) {
            const uint64_t length = (next >> 2 & 63) + 1;
            if (length > 16) break;
            memcpy(to, from + 1, 16);
            to += length, from += length + 1;
            if (length > 4) continue;
            next >>= 8 * (length + 1);
            if ((next & 3) == 0) continue;
        }
        const uint64_t kind = next & 3, tag = next & 255, is_far = 0 - (kind >> 1);
        const uint64_t length = (is_far & ((tag >> 2) + 1)) | (~is_far & ((tag >> 2 & 7) + 4));
        const uint64_t offset = (is_far & (next >> 8 & 65535)) | (~is_far & ((tag >> 5) << 8 | (next >> 8 & 255)));
        if (kind == 3 || length > 16 || offset < length || offset > (uint64_t)(to - begin)) break;
        memmove(to, to - offset, 16);
        to += length, from += kind + 1;
    }
    *at = from, *made = to;
}

API int64_t penstock_snappy(const uint8_t *from, int64_t size, uint8_t *to, int64_t room) {
    Bytes head = {from, from + size, FINE};
    const uint8_t *const begin = to, *const to_end = to + room, *const end = from + size;
    if (varint(&head) != (uint64_t)room || head.state != FINE) return WRONG;
    from = head.at;
    while (from < end) {
        snappy_near(&from, end, &to, begin, to_end);
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
                if (size - room >= runs->bits) return WRONG; /* writers cut the last eight values short, but no others */
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

/* Of ``count`` places from ``first`` on, how many a list of ``length`` begins with. */
static inline int64_t begins(int64_t first, int64_t count, int64_t length) {
    return (first + count + length - 1) / length - (first + length - 1) / length;
}

/* Whether the levels of ``values`` values, the first of which is number ``first`` of its column, are all ``level``; or,
 * with a ``length``, those of lists that have so many values each: 0 where one begins, else ``level``. */
API int64_t penstock_levels_fit(const uint8_t *levels, int64_t size, int64_t bits, int64_t values, int64_t level,
                                int64_t first, int64_t length) {
    uint32_t found[CODES];
    Runs runs;
    open_runs(&runs, levels, levels + size, bits);
    for (int64_t now; values; values -= now, first += now) {
        if (next_run(&runs) < 0) return WRONG;
        now = least(values, runs.left);
        if (runs.bit == NONE) {
            const int64_t wanted = length ? begins(first, now, length) : 0;
            if (runs.value == level ? wanted : runs.value || wanted < now) return WRONG;
        } else {
            now = least(now, CODES);
            unpack(&runs, now, found);
            int64_t place = length ? first % length : 1;
            for (int64_t i = 0; i < now; i++, place++) {
                if (place == length) place = 0;
                if (found[i] != (place ? (uint32_t)level : 0)) return WRONG;
            }
        }
        pass_run(&runs, now);
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
enum { RLE = 3 }; /* Parquet's number of an encoding */

typedef struct {
    int64_t source, width; /* of a value that is fixed */
    const uint8_t *at, *end;
    int64_t bit, stride; /* BITS, SPLIT: values that were read; values between two bytes of one */
    Runs levels, codes;
    Deltas lengths, prefixes;
    uint8_t *last; /* PREFIXES: the value before, in the memory of the caller */
    int64_t last_size, last_room;
} Page;

/* Begins a page. ``levels``: of ``level_size`` bytes; NULL: no row may be null. ``last``: with room for every byte of
 * ``values``, where they share prefixes. */
static int64_t page_open(Page *page, const uint8_t *levels, int64_t level_size, const uint8_t *values, int64_t size,
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
static int64_t page_begin(Page *page, const int64_t *header, const uint8_t *body, int64_t is_nullable, int64_t codec,
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
    return page_open(page, is_nullable ? levels : NULL, level_size, values, made, source, width, NULL, 0);
}

/* Whether runs go on behind the values that a page has. Packed ones end together, eight of them; DuckDB fills up to 256. */
static int runs_on(const Runs *runs) {
    if (runs->next < runs->end || runs->bit == NONE) return runs->next < runs->end || runs->left;
    return runs->left >= 8 && (runs->left >= 256 || (runs->left + runs->bit / runs->bits) % 256);
}

/* Whether a page of which all rows were read has values left: its header says of fewer than there are. */
static int has_more(const Page *page) {
    switch (page->source) {
    case WORDS:
    case BOOLEANS:
        return page->codes.bits && runs_on(&page->codes);
    case DELTA:
        return page->lengths.left > 0;
    case SPLIT:
        return page->bit < page->stride;
    case BITS:
        return (page->end - page->at) * 8 - page->bit >= 8;
    default:
        return page->at < page->end;
    }
}

/* For each of the next rows, whether it is valid; and how many are. */
static int64_t page_levels(Page *page, int64_t rows, uint8_t *valid) {
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
static int64_t page_places(const uint8_t *valid, const int64_t *picks, int64_t base, int64_t count, uint8_t *picked,
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

/* Of more than 8 bytes. */
static inline void big_to_128(const uint8_t *from, int64_t width, uint8_t *to) {
    uint64_t low = 0;
    for (int64_t i = width - 8; i < width; i++) low = low << 8 | from[i];
    store_128(to, (int64_t)low, from_big(from, width - 8));
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
    if (!words) { /* the codes are what is wanted */
        memcpy(to, codes, (size_t)count * 4);
        return 0;
    }
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

/* How many picks, the first ``first`` among them, are before a row. */
static inline int64_t picked_before(const int64_t *picks, int64_t first, int64_t count, int64_t row) {
    while (first < count) {
        const int64_t middle = first + (count - first) / 2;
        if (picks[middle] < row)
            first = middle + 1;
        else
            count = middle;
    }
    return first;
}

/* The codes of the picked ones of the next ``rows``, one by one. */
static int64_t pick_codes(Runs *runs, int64_t rows, const int64_t *picks, int64_t base, int64_t count, uint32_t *codes) {
    int64_t passed = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = picks[i] - base;
        if (pass_runs(runs, place - passed) < 0 || next_run(runs) < 0) return WRONG;
        passed = place;
        codes[i] = runs->bit == NONE ? (uint32_t)runs->value : packed_at(runs, runs->bit);
    }
    return pass_runs(runs, rows - passed);
}

/* Of the next ``values`` the picked ones, as words. All codes are unpacked where many are picked. */
static int64_t words_of(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count,
                        const uint8_t *words, int64_t known, int64_t width, uint8_t *to) {
    uint32_t codes[CODES];
    if (picks && !count) return pass_runs(&page->codes, values);
    for (int64_t done = 0; done < values; done += CODES, base += CODES) {
        const int64_t rows = least(values - done, CODES);
        const int64_t found = picks ? picked_before(picks, 0, least(count, rows), base + rows) : rows;
        const int is_dense = found * FEW > rows;
        if ((is_dense ? read_runs(&page->codes, rows, codes) : pick_codes(&page->codes, rows, picks, base, found, codes)) < 0)
            return WRONG;
        if (is_dense && found < rows) /* a position is never before its place, so that it was not overwritten */
            for (int64_t i = 0; i < found; i++) codes[i] = codes[picks[i] - base];
        if (gather(words, known, width, codes, found, to) < 0) return WRONG;
        to += found * width;
        if (picks) picks += found, count -= found;
    }
    return 0;
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
static int64_t page_numbers(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count, int64_t kind,
                            const uint8_t *words, int64_t known, int64_t word_width, uint8_t *to) {
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

/* Of the next ``values`` texts the picked ones, ``count`` of them: their ends from ``offset`` on, and their bytes; 1 if
 * there is not enough ``room``. ``bounds`` and ``words``: the dictionary's. */
static int64_t page_texts(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count,
                          const int32_t *bounds, const uint8_t *words, int64_t known, int32_t *ends, uint8_t *to,
                          int64_t offset, int64_t room) {
    const uint8_t *texts[BLOCK];
    int64_t sizes[BLOCK];
    const int64_t most = page->source == PREFIXES ? 1 : BLOCK;
    const uint8_t *const safe = page->source == WORDS ? words + bounds[known] : page->end;
    const int is_near = page->source != PREFIXES; /* what lies behind a text may be read up to ``safe`` */
    int64_t given = 0;
    for (int64_t start = 0; start < values; start += most) {
        const int64_t now = least(values - start, most);
        if (next_texts(page, now, bounds, words, known, texts, sizes) < 0) return WRONG;
        for (int64_t i = 0; i < now; i++) {
            if (picks && (given == count || picks[given] - base != start + i)) continue;
            const int64_t size = sizes[i];
            if (size > room - offset) return 1;
            if (size <= SHORT_TEXT && room - offset >= SHORT_TEXT && is_near && safe - texts[i] >= SHORT_TEXT)
                memcpy(to + offset, texts[i], SHORT_TEXT);
            else
                memcpy(to + offset, texts[i], (size_t)size);
            offset += size;
            ends[given++] = (int32_t)offset;
        }
    }
    return 0;
}

/* The same for texts that become numbers: decimals, and values of ``page->width`` that share prefixes. */
static int64_t text_numbers(Page *page, int64_t values, const int64_t *picks, int64_t base, int64_t count, int64_t kind,
                            int64_t out_width, uint8_t *to) {
    const uint8_t *texts[BLOCK];
    int64_t sizes[BLOCK], given = 0;
    const int64_t most = page->source == PREFIXES ? 1 : BLOCK;
    for (int64_t start = 0; start < values; start += most) {
        const int64_t now = least(values - start, most);
        if (next_texts(page, now, NULL, NULL, 0, texts, sizes) < 0) return WRONG;
        for (int64_t i = 0; i < now; i++) {
            if (page->width ? sizes[i] != page->width : sizes[i] < 1 || sizes[i] > 16) return WRONG;
            if (picks && (given == count || picks[given] - base != start + i)) continue;
            convert(kind, sizes[i], texts[i], texts[i] + sizes[i], NULL, 0, 1, to + given++ * out_width);
        }
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

static void page_spread(uint8_t *to, int64_t width, const uint8_t *valid, int64_t rows, int64_t count) {
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

/* The same for the ends of texts; the first text begins at ``offset``. */
static void page_spread_ends(int32_t *ends, int64_t offset, const uint8_t *valid, int64_t rows, int64_t count) {
    for (int64_t row = rows; row-- > 0;) {
        ends[row] = count ? ends[count - 1] : (int32_t)offset;
        count -= valid[row];
    }
}

/* ---------------------------------------------------------------- columns
 *
 * The pages of a column chunk one after the other. A call goes on until its rows are read, or something is needed that
 * the caller has to give; called again it goes on from there. ``_Column`` of page_stream.py is the same. */

enum { DONE, NEEDS_BYTES, NEEDS_CHECK, NEEDS_BODY, NEEDS_ROOM, NEEDS_WORDS, NEEDS_TEXT_ROOM, OTHER_FORM };
enum { TEXT = BIG_TO_128 + 1, CODES_OF_WORDS };         /* more kinds of what is made of a value */
enum { NO_WORDS, WORDS_MET, WORDS_READ };
enum { ENCODINGS = 10, PART = 4096, LONGEST_HEADER = 16 << 20 }; /* that of pyarrow */

typedef struct {
    /* what the caller says: whether rows may be null; the codec, or one that is not of here; bytes of a value, 0: it is
     * a text; where values come from, by the encoding of a page (WRONG: it has none of these) */
    int64_t rows, nullable, codec, width, sources[ENCODINGS];
    /* a part of the file, of ``block_size`` bytes from ``block_at`` on; where the next header stands, and where the
     * column ends; the bytes that are needed, from where on */
    const uint8_t *block;
    int64_t block_size, block_at, next, end, needs_at, needs_size;
    uint8_t *room; /* for a page without the codec */
    int64_t room_size;
    /* the page at hand: the rows that it has left, those of later ones, whether it was not begun, its header, where its
     * body begins, and whether that has its checksum */
    int64_t page_left, unmet, pending, checked, body_at, header[HEADER_FIELDS];
    int64_t words_state, words_at, words_header[HEADER_FIELDS], known;
    /* what is made of values, of which width, and the words in that form; for TEXT with ``bounds`` */
    int64_t kind, out_width;
    const uint8_t *words;
    const int32_t *bounds;
    /* where it goes: numbers or the bytes of texts, the ends of these, whether each row is valid */
    uint8_t *to;
    int32_t *ends;
    uint8_t *valid;
    int64_t to_size;
    /* where the file says that pages are, and with which rows they begin: two numbers of each, and of the end; or none */
    const int64_t *places;
    int64_t place_count;
    /* of this call: rows that are behind, picks that are, rows that were given, nulls among them, bytes of texts */
    int64_t base, first, done, nulls, size;
    Page page;
} Column;

API int64_t penstock_column_bytes(void) { return sizeof(Column); }

static int64_t need(Column *column, int64_t at, int64_t size) {
    column->needs_at = at;
    column->needs_size = least(size, column->end - at);
    return NEEDS_BYTES;
}

/* The place of the page that has a row. */
static int64_t place_of(const Column *column, int64_t row) {
    int64_t low = 0, high = column->place_count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (column->places[2 * middle + 1] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Goes from the end of a page over others of which no row is wanted up to one that is so many rows away, without their
 * headers. Not before the first page, where a dictionary may be. How many rows are behind comes back. */
static int64_t leap(Column *column, int64_t rows) {
    const int64_t row = column->rows - column->unmet;
    if (!column->place_count || !row || rows <= 0) return 0;
    int64_t place = place_of(column, row + rows);
    if (row + rows == column->places[2 * column->place_count + 1]) place = column->place_count;
    const int64_t passed = column->places[2 * place + 1] - row;
    if (passed <= 0) return 0;
    column->next = column->places[2 * place];
    column->unmet -= passed;
    return passed;
}

/* Whether the page at hand is the one that the file says is there. */
static int is_in_place(const Column *column, int64_t begin) {
    const int64_t row = column->rows - column->unmet, *const place = column->places + 2 * place_of(column, row);
    return place[0] == begin && place[1] == row && place[3] - row == column->header[VALUES];
}

/* Finds the next page of values, and keeps where a dictionary is. */
static int64_t next_page(Column *column) {
    int64_t *const header = column->header;
    for (;;) {
        const int64_t left = column->end - column->next, begin = column->next - column->block_at;
        const int64_t here = begin < 0 ? 0 : least(column->block_size - begin, left);
        if (left <= 0) return WRONG;
        if (here <= 0) return need(column, column->next, 1);
        const int64_t read = page_header(column->block + begin, here, header);
        if (read < 0 || (read == 0 && (here == left || here >= LONGEST_HEADER))) return WRONG;
        if (read == 0) return need(column, column->next, 2 * here);
        if (header[COMPRESSED] < 0 || header[COMPRESSED] > left - read || header[UNCOMPRESSED] < 0) return WRONG;
        column->body_at = column->next + read;
        column->next = column->body_at + header[COMPRESSED];
        if (header[PAGE_TYPE] == INDEX) continue;
        if (header[VALUES] < 0 || header[VALUES] > INT32_MAX || header[UNCOMPRESSED] > INT32_MAX) return WRONG;
        if (header[PAGE_TYPE] == DICTIONARY) {
            const int is_plain = header[ENCODING] == 0 || header[ENCODING] == 2;
            if (column->words_state != NO_WORDS || column->unmet < column->rows || !is_plain) return WRONG;
            column->words_state = WORDS_MET;
            column->words_at = column->body_at;
            memcpy(column->words_header, header, sizeof(column->header));
            continue;
        }
        if (header[VALUES] > column->unmet || (header[PAGE_TYPE] == DATA_2 && header[ROWS] != header[VALUES])) return WRONG;
        if (column->place_count && !is_in_place(column, column->body_at - read)) return WRONG;
        column->page_left = header[VALUES];
        column->unmet -= header[VALUES];
        column->pending = 1;
        column->checked = 0;
        return DONE;
    }
}

/* Goes to the first page that has values, for a caller that wants to know of the dictionary before it. */
API int64_t penstock_column_next(Column *column) {
    int64_t found = DONE;
    while (!column->page_left && column->unmet && (found = next_page(column)) == DONE) continue;
    return found;
}

/* Begins the page at hand. */
static int64_t open_page(Column *column) {
    const int64_t *const header = column->header, encoding = header[ENCODING];
    const int64_t source = encoding < 0 || encoding >= ENCODINGS ? WRONG : column->sources[encoding];
    const int64_t size = header[COMPRESSED], begin = column->body_at - column->block_at;
    if (source == WRONG) return WRONG;
    if (source == WORDS && column->words_state == WORDS_MET) return NEEDS_WORDS;
    if (size && (begin < 0 || size > column->block_size - begin)) return need(column, column->body_at, size);
    if (header[HAS_CHECKSUM] && !column->checked) return NEEDS_CHECK;
    if (source == PREFIXES || column->codec > LZ4) return NEEDS_BODY;
    if (column->codec != NO_CODEC) {
        if (header[UNCOMPRESSED] > (column->codec == SNAPPY ? 24 : 255) * size + 64) return WRONG; /* than there can be */
        if (header[UNCOMPRESSED] > column->room_size) return NEEDS_ROOM;
    }
    const uint8_t *const body = size ? column->block + begin : column->block;
    column->pending = 0;
    return page_begin(&column->page, header, body, column->nullable, column->codec, source, column->width, column->room);
}

/* Begins the page at hand, whose body the caller has made. */
API int64_t penstock_column_open(Column *column, const uint8_t *levels, int64_t level_size, const uint8_t *values,
                                 int64_t size, uint8_t *last, int64_t last_room) {
    column->pending = 0;
    return page_open(&column->page, levels, level_size, values, size, column->sources[column->header[ENCODING]],
                     column->width, last, last_room);
}

/* Values of the page at hand: of the next ``values`` the picked ones. */
static int64_t read_values(Column *column, int64_t values, const int64_t *picks, int64_t base, int64_t count) {
    Page *const page = &column->page;
    if (column->kind == TEXT)
        return page_texts(page, values, picks, base, count, column->bounds, column->words, column->known,
                          column->ends + column->done, column->to, column->size, column->to_size);
    uint8_t *const to = column->to + column->done * column->out_width;
    if (page->source != WORDS && (page->source == PREFIXES || !page->width))
        return text_numbers(page, values, picks, base, count, column->kind, column->out_width, to);
    return page_numbers(page, values, picks, base, count, column->kind, column->words, column->known, column->out_width, to);
}

/* The next ``rows`` of the page at hand, or of these the picked ones. */
static int64_t read_part(Column *column, int64_t rows, const int64_t *picks, int64_t count) {
    uint8_t levels[PART], *const valid = column->valid + column->done;
    int64_t places[PART], base = column->base, values = rows, chosen = count;
    if (column->nullable) {
        values = page_levels(&column->page, rows, picks ? levels : valid);
        if (values < 0) return WRONG;
        chosen = picks ? page_places(levels, picks, base, count, valid, places) : values;
        if (picks) picks = places;
        base = 0;
    }
    const int64_t found = read_values(column, values, picks, base, chosen);
    if (found) return found < 0 ? WRONG : NEEDS_TEXT_ROOM;
    if (column->kind == TEXT) {
        int32_t *const ends = column->ends + column->done;
        const int64_t begin = column->size;
        if (chosen) column->size = ends[chosen - 1];
        if (chosen < count) page_spread_ends(ends, begin, valid, count, chosen);
    } else if (chosen < count) {
        page_spread(column->to + column->done * column->out_width, column->out_width, valid, count, chosen);
    }
    column->done += count;
    column->nulls += count - chosen;
    return DONE;
}

/* So many of the next rows of a page are read at once: what may have to be read again (texts), or stands on the stack. */
static int64_t part_of(const Column *column, int64_t rows, int is_picked) {
    if (column->kind == TEXT && column->page.source == PREFIXES) return 1;
    return column->kind == TEXT || (is_picked && column->nullable) ? least(rows, PART) : rows;
}

/* Reads rows up to ``rows`` from those on where the first of these calls began; of these the picked ones. */
API int64_t penstock_column_read(Column *column, int64_t rows, const int64_t *picks, int64_t count) {
    while (column->base < rows) {
        if (!column->page_left) {
            const int64_t wanted = picks && column->first < count ? picks[column->first] : rows;
            const int64_t passed = picks ? leap(column, wanted - column->base) : 0;
            column->base += passed;
            const int64_t found = passed ? DONE : next_page(column);
            if (found) return found;
            continue;
        }
        int64_t now = least(rows - column->base, column->page_left), first = column->first;
        if (!picks || now < column->page_left || picked_before(picks, first, count, column->base + now) > first) {
            int64_t found = column->pending ? open_page(column) : DONE;
            if (found) return found;
            const int is_coded = column->page.source == WORDS && column->words_state == WORDS_READ;
            if (column->kind == CODES_OF_WORDS && !is_coded) return OTHER_FORM;
            now = part_of(column, now, picks != NULL);
            const int64_t behind = picks ? picked_before(picks, first, count, column->base + now) : first + now;
            const Page before = column->page;
            found = read_part(column, now, picks ? picks + first : NULL, behind - first);
            if (found == NEEDS_TEXT_ROOM) column->page = before;
            if (found) return found;
            if (now == column->page_left && has_more(&column->page)) return WRONG;
            column->first = behind;
        }
        column->page_left -= now;
        column->base += now;
    }
    return DONE;
}

/* The words of a dictionary as numbers. */
API int64_t penstock_words_as(const uint8_t *values, int64_t size, int64_t count, int64_t width, int64_t kind,
                              int64_t out_width, uint8_t *to) {
    Page page;
    if (page_open(&page, NULL, 0, values, size, PLAIN, width, NULL, 0) < 0) return WRONG;
    return width ? page_numbers(&page, count, NULL, 0, count, kind, NULL, 0, out_width, to)
                 : text_numbers(&page, count, NULL, 0, count, kind, out_width, to);
}

/* The words of a dictionary as texts: their ends, and their bytes, which are less than ``size``. */
API int64_t penstock_words_texts(const uint8_t *values, int64_t size, int64_t count, int32_t *ends, uint8_t *to) {
    Page page;
    if (page_open(&page, NULL, 0, values, size, PLAIN, 0, NULL, 0) < 0) return WRONG;
    return page_texts(&page, count, NULL, 0, count, NULL, NULL, 0, ends, to, 0, size);
}
