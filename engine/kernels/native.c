/* Hot loops of grouping and joining, compiled. Each has a twin in numpy that gives the same bits (native.py says which).

Rules:

1. Callers have checked all lengths and ranges: nothing here can fail, allocate or block.
2. Rows are handled strictly from the first to the last, sums of floating-point numbers included.
3. No state but what callers pass: any number of threads may be inside, without the interpreter's lock.
4. Memory that is far away is asked for some rows ahead. */

#include <stdint.h>
#include <string.h>

#define AHEAD 16
#define BLOCK 64
#define NONE (-1)
#define NEAR 4096 /* so many keys are in the cache in any case */
#define CACHED (16 * 1024) /* so many totals are */
#define WORDS 4            /* sums of whole numbers in one pass */
#define FLOATS 2           /* and of doubles */

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

/* Changes with every change of a function's name, arguments or meaning. */
API int64_t penstock_kernels(void) { return 14; }

#define FIRST UINT64_C(0x9E3779B97F4A7C15)
#define SECOND UINT64_C(0xD6E8FEB86659FD93)
#define PLACE UINT64_C(0xA0761D6478BD642F)

static inline uint64_t mixed(uint64_t x) {
    x *= FIRST;
    x ^= x >> 32;
    x *= SECOND;
    return x ^ (x >> 32);
}

static inline uint64_t joined(uint64_t hash, uint64_t next) {
    return mixed(hash * UINT64_C(0x8EBC6AF09C88C6E3) + next);
}

/* ---------------------------------------------------------------- parts of an exchange */

/* The first slot of a hash (slots.py): not by its uppermost bits, by which keys may come sorted. */
static inline uint64_t home(uint64_t hash, int64_t bits) { return hash << 16 >> (64 - bits); }

/* Numbers, thoroughly mixed (hashing.py). */
API void penstock_mixed(const uint64_t *numbers, int64_t rows, uint64_t *found) {
    for (int64_t row = 0; row < rows; row++) found[row] = mixed(numbers[row]);
}

/* Of so many parts the one of each number of four or eight bytes (hashing.py). */
#define PARTS_OF(name, type)                                                                                           \
    API void penstock_parts_of_##name(const type *numbers, int64_t rows, int64_t parts, uint16_t *found) {             \
        for (int64_t row = 0; row < rows; row++)                                                                       \
            found[row] = (uint16_t)((mixed((uint64_t)(int64_t)numbers[row]) >> 32) * (uint64_t)parts >> 32);           \
    }
PARTS_OF(i32, int32_t)
PARTS_OF(i64, int64_t)

/* The rows by part, in each in their own order, and the parts in that order. ``starts``, all zero, has a place for each
 * part, and one more. Below 2^31 rows. */
API void penstock_part_order(const uint16_t *parts, int64_t rows, int64_t *starts, int64_t count, int32_t *order,
                             uint16_t *ordered) {
    for (int64_t row = 0; row < rows; row++) starts[parts[row] + 1]++;
    for (int64_t part = 0; part < count; part++) starts[part + 1] += starts[part];
    for (int64_t row = 0; row < rows; row++) {
        const int64_t place = starts[parts[row]]++;
        order[place] = (int32_t)row;
        ordered[place] = parts[row];
    }
}

/* ---------------------------------------------------------------- hashes of bytes and lists (hashing.py) */

static inline uint64_t placed(uint64_t hash, uint64_t place) {
    return mixed(hash + (place + 1) * PLACE);
}

/* Those of the bytes from each start to its end. Words are read in the order of their bytes, the least first. */
API void penstock_hash_spans(const uint8_t *bytes, const int64_t *starts, const int64_t *ends, int64_t rows,
                             uint64_t *found) {
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *at = bytes + starts[row];
        const int64_t length = ends[row] - starts[row];
        uint64_t sum = (uint64_t)length * UINT64_C(0xE7037ED1A0B428DB), place = 0;
        int64_t left = length;
        for (; left > 8; left -= 8, at += 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            sum += placed(word, place++);
        }
        uint64_t last = 0;
        for (int64_t i = 0; i < left; i++) last |= (uint64_t)at[i] << (8 * i);
        found[row] = mixed(sum + placed(last, place));
    }
}

static inline uint64_t bits_of(double number) {
    const double even = number + 0.0; /* both zeros are one */
    uint64_t bits;
    memcpy(&bits, &even, 8);
    return bits << 1 > UINT64_C(0xFFE0000000000000) ? UINT64_C(0x7FF8000000000000) : bits; /* no comparison of doubles */
}

/* What the compiler makes of such a loop with AVX-512, which multiplies eight words at once, is four times as fast from
 * so many numbers on. Asked of the processor itself: not every compiler's library knows it. */
#define LONG 32
#if defined(__x86_64__) && defined(__GNUC__) && !defined(_WIN32)
#include <cpuid.h>
#define WIDE __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw")))
#define KEPT 0xE6                               /* the system keeps all of its registers */
#define OF_PROCESSOR (1U << 27)                 /* and says so */
#define NEEDED (1U << 16 | 1U << 17 | 1U << 30 | 1U << 31)

/* Whether this processor has it. */
API int64_t penstock_is_wide(void) {
    uint32_t a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OF_PROCESSOR)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & KEPT) != KEPT || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return (b & NEEDED) == NEEDED;
}
#else
#define WIDE
API int64_t penstock_is_wide(void) { return 0; }
#endif

#define SIGNED_BITS(x) ((uint64_t)(int64_t)(x))
#define LENGTH UINT64_C(0xE7037ED1A0B428DB)

#define SUM_OF_LIST(NAME, TYPE, AS_BITS)                                                                             \
    uint64_t NAME(const TYPE *numbers, int64_t count) {                                                              \
        uint64_t sum = (uint64_t)count * LENGTH;                                                                     \
        for (int64_t i = 0; i < count; i++) sum += placed(mixed(AS_BITS(numbers[i])), (uint64_t)i);                  \
        return mixed(sum);                                                                                           \
    }

/* Those of lists that stand one behind the other, with so many numbers each, none of them null. ``wide``: as long ones
 * may be hashed here, if ``penstock_is_wide`` says so. */
#define HASH_LISTS(NAME, TYPE, AS_BITS)                                                                              \
    static inline SUM_OF_LIST(list_##NAME, TYPE, AS_BITS)                                                            \
    WIDE static SUM_OF_LIST(wide_list_##NAME, TYPE, AS_BITS)                                                         \
    API void penstock_hash_lists_##NAME(const TYPE *numbers, const int64_t *counts, int64_t rows, int64_t wide,      \
                                        uint64_t *found) {                                                           \
        for (int64_t row = 0; row < rows; numbers += counts[row++])                                                  \
            found[row] = wide && counts[row] >= LONG ? wide_list_##NAME(numbers, counts[row])                        \
                                                     : list_##NAME(numbers, counts[row]);                            \
    }

/* Of one byte there are 256, which are mixed beforehand, and multiplied as ``placed`` would: it multiplies a sum. */
static inline uint64_t list_of_bytes(const uint64_t *of, const uint8_t *bytes, int64_t count) {
    uint64_t sum = (uint64_t)count * LENGTH;
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = of[bytes[i]] + ((uint64_t)i + 1) * (PLACE * FIRST);
        x ^= x >> 32;
        x *= SECOND;
        sum += x ^ (x >> 32);
    }
    return mixed(sum);
}

#define HASH_BYTES(NAME, TYPE)                                                                                       \
    WIDE static SUM_OF_LIST(wide_list_##NAME, TYPE, SIGNED_BITS)                                                     \
    API void penstock_hash_lists_##NAME(const TYPE *numbers, const int64_t *counts, int64_t rows, int64_t wide,      \
                                        uint64_t *found) {                                                           \
        uint64_t of[256];                                                                                            \
        for (int byte = 0; byte < 256; byte++) of[byte] = mixed(SIGNED_BITS((TYPE)byte)) * FIRST;                    \
        for (int64_t row = 0; row < rows; numbers += counts[row++])                                                  \
            found[row] = wide && counts[row] >= LONG ? wide_list_##NAME(numbers, counts[row])                        \
                                                     : list_of_bytes(of, (const uint8_t *)numbers, counts[row]);     \
    }

HASH_BYTES(i8, int8_t)
HASH_BYTES(u8, uint8_t)
HASH_LISTS(i16, int16_t, SIGNED_BITS)
HASH_LISTS(i32, int32_t, SIGNED_BITS)
HASH_LISTS(i64, int64_t, SIGNED_BITS)
HASH_LISTS(u16, uint16_t, SIGNED_BITS)
HASH_LISTS(u32, uint32_t, SIGNED_BITS)
HASH_LISTS(u64, uint64_t, SIGNED_BITS)
HASH_LISTS(f32, float, bits_of)
HASH_LISTS(f64, double, bits_of)

/* ---------------------------------------------------------------- numbers of keys
 *
 * New keys are numbered from ``count`` on, in the order of their first rows, which go to ``first``. ``ids`` gets the
 * number of each row. The new count comes back. */

/* The codes of dictionaries' values for ``indices`` into them. How many come back: fewer than rows if one is outside. */
API int64_t penstock_pick_codes(const int64_t *codes, int64_t size, const int32_t *indices, int64_t rows, int64_t *picked) {
    for (int64_t row = 0; row < rows; row++) {
        if ((uint64_t)(int64_t)indices[row] >= (uint64_t)size) return row;
        picked[row] = codes[indices[row]];
    }
    return rows;
}

static inline int64_t numbered_place(int32_t *place, int64_t row, int64_t *count, int64_t **first) {
    if (*place < 0) {
        *place = (int32_t)(*count)++;
        *(*first)++ = row;
    }
    return *place;
}

/* A table with a place for every combination of codes: of each column from its ``low`` on as many as its ``span``. It
 * ends before the first row with a code that has no place; ``done`` gets the number of rows that it has done. */
API int64_t penstock_number_places(const int64_t *const *columns, const int64_t *lows, const int64_t *spans, int64_t width,
                                   int64_t rows, int32_t *table, int64_t count, int64_t *ids, int64_t *first,
                                   int64_t *done) {
    const int64_t *const codes = columns[0];
    const uint64_t low = (uint64_t)lows[0], span = (uint64_t)spans[0];
    int64_t row = 0;
    if (width == 1) {
        for (; row < rows; row++) {
            const uint64_t place = (uint64_t)codes[row] - low;
            if (place >= span) break;
            ids[row] = numbered_place(table + place, row, &count, &first);
        }
        *done = row;
        return count;
    }
    for (; row < rows; row++) {
        uint64_t place = (uint64_t)codes[row] - low;
        int outside = place >= span;
        for (int64_t w = 1; w < width; w++) {
            const uint64_t next = (uint64_t)columns[w][row] - (uint64_t)lows[w];
            outside |= next >= (uint64_t)spans[w];
            place = place * (uint64_t)spans[w] + next;
        }
        if (outside) break;
        ids[row] = numbered_place(table + place, row, &count, &first);
    }
    *done = row;
    return count;
}

/* Keys of ``width`` columns of codes in a table of 2^bits slots, at most half of them taken: a slot holds the number of
 * a key. The slots of a key begin where the upper bits of its hash say, each further on by one more (slots.py).
 * ``known`` and ``hashes`` have room for all rows as new keys. */
API int64_t penstock_number_keys(const int64_t *const *columns, int64_t width, int64_t rows, int64_t *const *known,
                                 int32_t *slots, int64_t bits, uint64_t *hashes, int64_t count, int64_t *ids,
                                 int64_t *first) {
    const uint64_t mask = (UINT64_C(1) << bits) - 1;
    uint64_t hash[BLOCK], at[BLOCK];
    for (int64_t start = 0; start < rows; start += BLOCK) {
        const int64_t size = rows - start < BLOCK ? rows - start : BLOCK;
        for (int64_t i = 0; i < size; i++) {
            uint64_t h = mixed((uint64_t)columns[0][start + i]);
            for (int64_t w = 1; w < width; w++) h = joined(h, (uint64_t)columns[w][start + i]);
            hash[i] = h;
            at[i] = home(h, bits);
            __builtin_prefetch(slots + at[i]);
        }
        for (int64_t i = 0; i < size; i++) {
            const int32_t id = slots[at[i]];
            if (id >= 0) __builtin_prefetch(known[0] + id);
        }
        for (int64_t i = 0; i < size; i++) {
            const int64_t row = start + i;
            uint64_t slot = at[i];
            for (uint64_t step = 1;; step++) {
                int32_t id = slots[slot];
                if (id == NONE) {
                    for (int64_t w = 0; w < width; w++) known[w][count] = columns[w][row];
                    hashes[count] = hash[i];
                    slots[slot] = (int32_t)count;
                    ids[row] = count++;
                    *first++ = row;
                    break;
                }
                int64_t same = 1;
                for (int64_t w = 0; w < width; w++) same &= known[w][id] == columns[w][row];
                if (same) {
                    ids[row] = id;
                    break;
                }
                slot = (slot + step) & mask;
            }
        }
    }
    return count;
}

/* Put keys, all different, into empty slots; they are numbered from ``number`` on. */
API void penstock_place_keys(const uint64_t *hashes, int64_t keys, int64_t number, int32_t *slots, int64_t bits) {
    const uint64_t mask = (UINT64_C(1) << bits) - 1;
    for (int64_t key = 0; key < keys; key++) {
        if (key + AHEAD < keys) __builtin_prefetch(slots + home(hashes[key + AHEAD], bits));
        uint64_t slot = home(hashes[key], bits);
        for (uint64_t step = 1; slots[slot] != NONE; step++) slot = (slot + step) & mask;
        slots[slot] = (int32_t)(number + key);
    }
}

static inline uint64_t word(const uint8_t *from, int64_t size) {
    uint64_t found = 0;
    memcpy(&found, from, (size_t)size);
    return found;
}

/* The halves of a product of 128 bits, one over the other: the step of wyhash (Wang Yi, public domain). */
static inline uint64_t folded(uint64_t one, uint64_t other) {
    const unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t hash_of(const uint8_t *bytes, int64_t length) {
    const uint64_t secret = UINT64_C(0xA0761D6478BD642F), other = UINT64_C(0xE7037ED1A0B428DB);
    uint64_t seed = other, low = 0, high = 0;
    if (length > 16) {
        const uint8_t *last = bytes + length - 16;
        for (; bytes < last; bytes += 16) seed = folded(word(bytes, 8) ^ secret, word(bytes + 8, 8) ^ seed);
        low = word(last, 8), high = word(last + 8, 8);
    } else if (length >= 8) {
        low = word(bytes, 8), high = word(bytes + length - 8, 8);
    } else if (length >= 4) {
        low = word(bytes, 4), high = word(bytes + length - 4, 4);
    } else if (length) {
        low = (uint64_t)bytes[0] << 16 | (uint64_t)bytes[length / 2] << 8 | bytes[length - 1];
    }
    return folded(secret ^ (uint64_t)length, folded(low ^ secret, high ^ seed));
}

static inline int same_bytes(const uint8_t *one, const uint8_t *other, int64_t length) {
    if (length >= 8) {
        const uint8_t *last = one + length - 8;
        if (word(last, 8) != word(other + length - 8, 8)) return 0;
        for (; one < last; one += 8, other += 8)
            if (word(one, 8) != word(other, 8)) return 0;
        return 1;
    }
    if (length >= 4) return word(one, 4) == word(other, 4) && word(one + length - 4, 4) == word(other + length - 4, 4);
    for (int64_t at = 0; at < length; at++)
        if (one[at] != other[at]) return 0;
    return 1;
}

/* Strings of bytes: row ``r`` has those of ``content`` from bounds[r] to bounds[r + 1]. The strings of known keys lie one
 * behind the other in ``kept``, each from ends[n] to ends[n + 1]; there is room for all rows as new ones. Without ``add``
 * nothing is added: rows of other strings get -1. */
#define NUMBER_STRINGS(NAME, BOUND)                                                                                    \
    API int64_t NAME(const BOUND *bounds, const uint8_t *content, int64_t rows, int64_t *ends, uint8_t *kept,           \
                     int32_t *slots, int64_t bits, uint64_t *hashes, int64_t count, int64_t add, int64_t *ids,         \
                     int64_t *first) {                                                                                 \
        const uint64_t mask = (UINT64_C(1) << bits) - 1;                                                               \
        uint64_t hash[BLOCK];                                                                                          \
        for (int64_t start = 0; start < rows; start += BLOCK) {                                                        \
            const int64_t size = rows - start < BLOCK ? rows - start : BLOCK;                                          \
            for (int64_t i = 0; i < size; i++) {                                                                       \
                const int64_t low = bounds[start + i];                                                                 \
                hash[i] = hash_of(content + low, bounds[start + i + 1] - low);                                         \
                __builtin_prefetch(slots + home(hash[i], bits));                                                       \
            }                                                                                                          \
            if (count > NEAR) {                                                                                        \
                for (int64_t i = 0; i < size; i++) {                                                                   \
                    const int32_t id = slots[home(hash[i], bits)];                                                     \
                    if (id >= 0) __builtin_prefetch(hashes + id), __builtin_prefetch(ends + id);                       \
                }                                                                                                      \
                for (int64_t i = 0; i < size; i++) {                                                                   \
                    const int32_t id = slots[home(hash[i], bits)];                                                     \
                    if (id >= 0) __builtin_prefetch(kept + ends[id]);                                                  \
                }                                                                                                      \
            }                                                                                                          \
            for (int64_t i = 0; i < size; i++) {                                                                       \
                const uint8_t *bytes = content + bounds[start + i];                                                    \
                const int64_t length = bounds[start + i + 1] - bounds[start + i];                                      \
                uint64_t slot = home(hash[i], bits);                                                                   \
                for (uint64_t step = 1;; step++) {                                                                     \
                    const int32_t id = slots[slot];                                                                    \
                    if (id == NONE && !add) {                                                                          \
                        ids[start + i] = NONE;                                                                         \
                        break;                                                                                         \
                    }                                                                                                  \
                    if (id == NONE) {                                                                                  \
                        memcpy(kept + ends[count], bytes, (size_t)length);                                             \
                        ends[count + 1] = ends[count] + length;                                                        \
                        hashes[count] = hash[i];                                                                       \
                        slots[slot] = (int32_t)count;                                                                  \
                        ids[start + i] = count++;                                                                      \
                        *first++ = start + i;                                                                          \
                        break;                                                                                         \
                    }                                                                                                  \
                    if (hashes[id] == hash[i] && ends[id + 1] - ends[id] == length &&                                  \
                        same_bytes(kept + ends[id], bytes, length)) {                                                  \
                        ids[start + i] = id;                                                                           \
                        break;                                                                                         \
                    }                                                                                                  \
                    slot = (slot + step) & mask;                                                                       \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return count;                                                                                                  \
    }

NUMBER_STRINGS(penstock_number_strings, int32_t)
NUMBER_STRINGS(penstock_number_large_strings, int64_t)

/* ---------------------------------------------------------------- joins */

/* A bit for each of 64 values, and how many are set before: a set value's number is its rank (key_dictionary.py). */
typedef struct {
    uint64_t bits;
    int64_t before;
} Ranks;

static inline int64_t ones(uint64_t x) {
    x -= x >> 1 & UINT64_C(0x5555555555555555);
    x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
    return (int64_t)(((x + (x >> 4)) & UINT64_C(0x0F0F0F0F0F0F0F0F)) * UINT64_C(0x0101010101010101) >> 56);
}

/* Set the bits of codes from ``low`` on in ``size`` empty words. How many are set comes back. */
API int64_t penstock_number_ranks(const int64_t *codes, int64_t rows, uint64_t low, Ranks *words, int64_t size) {
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row++) {
        const uint64_t place = (uint64_t)codes[row] - low;
        words[place >> 6].bits |= UINT64_C(1) << (place & 63);
    }
    for (int64_t at = 0; at < size; at++) {
        words[at].before = count;
        count += ones(words[at].bits);
    }
    return count;
}

/* The rank of each code, or -1; there is a bit for each of ``span`` values. */
API void penstock_find_ranks(const int64_t *codes, int64_t rows, uint64_t low, uint64_t span, const Ranks *words,
                             int64_t *ids) {
    for (int64_t row = 0; row < rows; row++) {
        const uint64_t place = (uint64_t)codes[row] - low;
        const Ranks found = words[place < span ? place >> 6 : 0];
        const int is_there = place < span && found.bits >> (place & 63) & 1;
        ids[row] = is_there ? found.before + ones(found.bits & ((UINT64_C(1) << (place & 63)) - 1)) : NONE;
    }
}

/* The place of each number among ``known``, the ``count`` > 0 mixed ones, ascending, or -1. ``directory`` says for the
 * uppermost 64 - ``shift`` bits of a mixed number where the first one with these, or a larger one, stands. */
API void penstock_find_mixed(const uint64_t *numbers, int64_t rows, const uint64_t *known, int64_t count,
                             const int64_t *directory, int64_t shift, int64_t *ids) {
    uint64_t wanted[BLOCK];
    for (int64_t start = 0; start < rows; start += BLOCK) {
        const int64_t block = rows - start < BLOCK ? rows - start : BLOCK;
        for (int64_t i = 0; i < block; i++) {
            wanted[i] = mixed(numbers[start + i]);
            if (count > NEAR) __builtin_prefetch(directory + (wanted[i] >> shift));
        }
        for (int64_t i = 0; i < block; i++) {
            int64_t place = directory[wanted[i] >> shift];
            while (known[place] < wanted[i] && place < count - 1) place++;
            ids[start + i] = known[place] == wanted[i] ? place : NONE;
        }
    }
}

/* The rows by their ids, all below ``size``, in each in their own order, to ``order``, if there is one. ``starts``, all
 * zero, has ``size`` places and two more: those of id n are from starts[n] to starts[n + 1] in the end. */
API void penstock_order_ids(const int64_t *ids, int64_t rows, int64_t size, int64_t *starts, int64_t *order) {
    if (!order) {
        for (int64_t row = 0; row < rows; row++) starts[ids[row] + 1]++;
        for (int64_t id = 0; id < size; id++) starts[id + 1] += starts[id];
        return;
    }
    starts += 1; /* until all are placed an id's rows end where they will begin */
    for (int64_t row = 0; row < rows; row++) starts[ids[row] + 1]++;
    for (int64_t id = 0; id < size; id++) starts[id + 1] += starts[id];
    for (int64_t row = 0; row < rows; row++) {
        if (row + AHEAD < rows) __builtin_prefetch(starts + ids[row + AHEAD], 1);
        order[starts[ids[row]]++] = row;
    }
}

/* For each id where its rows begin, and how many there are; none for -1. */
API void penstock_find_spans(const int64_t *ids, int64_t rows, const int64_t *starts, int64_t *first, int64_t *counts) {
    for (int64_t row = 0; row < rows; row++) {
        if (row + AHEAD < rows) __builtin_prefetch(starts + (ids[row + AHEAD] < 0 ? 0 : ids[row + AHEAD]));
        const int64_t id = ids[row];
        first[row] = id < 0 ? 0 : starts[id];
        counts[row] = id < 0 ? 0 : starts[id + 1] - starts[id];
    }
}

/* The first of ascending codes from ``at`` on that is not below ``code``: a few steps, then ever longer ones. */
static inline int64_t not_below(const int64_t *codes, int64_t at, int64_t rows, int64_t code) {
    int64_t step = 1;
    for (; step < 8 && at < rows && codes[at] < code; step++) at++;
    if (at >= rows || codes[at] >= code) return at;
    while (at + step < rows && codes[at + step] < code) at += step, step *= 2;
    int64_t end = at + step < rows ? at + step : rows;
    while (end - at > 1) {
        const int64_t middle = at + (end - at) / 2;
        if (codes[middle] < code) at = middle;
        else end = middle;
    }
    return end;
}

/* For each of ``ours`` where those of ``theirs`` that are equal begin, and how many there are; both are ascending. */
API void penstock_merge_spans(const int64_t *ours, int64_t rows, const int64_t *theirs, int64_t others, int64_t *first,
                              int64_t *counts) {
    int64_t start = 0, end = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t code = ours[row];
        if (row == 0 || code != ours[row - 1]) {
            start = not_below(theirs, end, others, code);
            end = start;
            while (end < others && theirs[end] == code) end++;
        }
        first[row] = start;
        counts[row] = end - start;
    }
}

/* Pairs of rows: row n goes with those that ``numbers`` names from first[n] on, counts[n] of them (without ``numbers`` the
 * places are the rows). From match at[1] of row at[0] on, which move, at most ``limit`` come; how many comes back. at[2]
 * is set where a row comes twice. With ``missing`` rows without match come once, with 0, and are marked there. */
API int64_t penstock_number_pairs(const int64_t *first, const int64_t *counts, int64_t rows, const int64_t *numbers,
                                  int64_t limit, int64_t *at, int64_t *left, int64_t *right, uint8_t *missing) {
    int64_t done = 0, row = at[0], match = at[1], twice = 0;
    for (; row < rows && done < limit; row++, match = 0) {
        const int64_t count = counts[row], start = first[row];
        if (!count && missing) {
            missing[done] = 1;
            left[done] = row, right[done++] = 0;
        }
        int64_t upto = count - match > limit - done ? match + limit - done : count;
        twice |= upto - match > 1;
        for (int64_t place = start + match; place < start + upto; place++, done++) {
            left[done] = row;
            right[done] = numbers ? numbers[place] : place;
        }
        if (upto < count) {
            match = upto;
            break;
        }
    }
    at[0] = row, at[1] = match, at[2] = twice;
    return done;
}

/* Pairs of rows where none matches twice: each row whose place is not -1, with what ``numbers`` names there (none: the
 * place itself). How many comes back. */
API int64_t penstock_list_found(const int64_t *places, int64_t rows, const int64_t *numbers, int64_t *left,
                                int64_t *right) {
    int64_t done = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t place = places[row], is_there = place >= 0;
        left[done] = row;
        right[done] = numbers && is_there ? numbers[place] : place;
        done += is_there;
    }
    return done;
}

/* ---------------------------------------------------------------- key filters
 *
 * The rows whose key is among those of a join's other side, or may be: they go to ``picked``, ascending; their number
 * comes back. */

/* A bit for each value from ``low`` on, ``span`` values. */
API int64_t penstock_pick_bits(const int64_t *codes, int64_t rows, uint64_t low, uint64_t span, const uint64_t *words,
                               int64_t *picked) {
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row++) {
        const uint64_t place = (uint64_t)codes[row] - low;
        const int inside = place < span;
        picked[count] = row;
        count += inside & (int)(words[inside ? place >> 6 : 0] >> (place & 63) & 1);
    }
    return count;
}

/* Four bits of a word: one for each six of the hash's lowest bits. Its upper ones name the word, out of 2^bits. */
static inline uint64_t bloom_mask(uint64_t hash) {
    return UINT64_C(1) << (hash & 63) | UINT64_C(1) << (hash >> 6 & 63) | UINT64_C(1) << (hash >> 12 & 63) |
           UINT64_C(1) << (hash >> 18 & 63);
}

API void penstock_fill_bloom(const uint64_t *hashes, int64_t keys, uint64_t *words, int64_t bits) {
    for (int64_t key = 0; key < keys; key++) {
        if (key + AHEAD < keys) __builtin_prefetch(words + (hashes[key + AHEAD] >> (64 - bits)), 1);
        words[hashes[key] >> (64 - bits)] |= bloom_mask(hashes[key]);
    }
}

API int64_t penstock_pick_bloom(const int64_t *const *columns, int64_t width, int64_t rows, const uint64_t *words,
                                int64_t bits, int64_t *picked) {
    uint64_t hash[BLOCK];
    int64_t count = 0;
    for (int64_t start = 0; start < rows; start += BLOCK) {
        const int64_t size = rows - start < BLOCK ? rows - start : BLOCK;
        for (int64_t i = 0; i < size; i++) {
            uint64_t h = mixed((uint64_t)columns[0][start + i]);
            for (int64_t w = 1; w < width; w++) h = joined(h, (uint64_t)columns[w][start + i]);
            hash[i] = h;
            __builtin_prefetch(words + (h >> (64 - bits)));
        }
        for (int64_t i = 0; i < size; i++) {
            const uint64_t mask = bloom_mask(hash[i]);
            picked[count] = start + i;
            count += (words[hash[i] >> (64 - bits)] & mask) == mask;
        }
    }
    return count;
}

/* ---------------------------------------------------------------- sorting */

#define DIGIT 12
#define DIGITS (1 << DIGIT)
#define PASSES 4 /* of numbers below 2^48 */

#pragma pack(push, 4)
typedef struct {
    uint64_t value;
    uint32_t row;
} Ranked;
#pragma pack(pop)

/* The rows by their ``values``, all below 2^bits and 2^48, equal ones in their own order: a radix sort from the last
 * digit on. ``sorted`` gets the values in this order. ``one`` and ``two`` have 12 bytes for each row. */
API void penstock_radix_order(const uint64_t *values, int64_t rows, int64_t bits, int64_t *order, uint64_t *sorted,
                              Ranked *one, Ranked *two) {
    uint32_t counts[PASSES][DIGITS];
    const int passes = (int)((bits + DIGIT - 1) / DIGIT);
    memset(counts, 0, sizeof(counts[0]) * (size_t)passes);
    for (int64_t row = 0; row < rows; row++) {
        const uint64_t value = values[row];
        one[row].value = value;
        one[row].row = (uint32_t)row;
        for (int pass = 0; pass < passes; pass++) counts[pass][value >> pass * DIGIT & (DIGITS - 1)]++;
    }
    for (int pass = 0; pass < passes; pass++) {
        uint32_t *const at = counts[pass], behind = 0;
        int one_digit = 0;
        for (int digit = 0; digit < DIGITS; digit++) {
            const uint32_t count = at[digit];
            one_digit |= count == rows;
            at[digit] = behind;
            behind += count;
        }
        if (one_digit) continue;
        for (int64_t row = 0; row < rows; row++) two[at[one[row].value >> pass * DIGIT & (DIGITS - 1)]++] = one[row];
        Ranked *const done = two;
        two = one, one = done;
    }
    for (int64_t row = 0; row < rows; row++) {
        order[row] = one[row].row;
        sorted[row] = one[row].value;
    }
}

/* Doubles as integers in the same order, all NaNs as the largest one, both zeros as one. */
API void penstock_ordered_bits(const double *values, int64_t rows, int64_t *bits) {
    for (int64_t row = 0; row < rows; row++) {
        const double value = values[row] + 0.0;
        int64_t found;
        memcpy(&found, &value, sizeof(found));
        found ^= (int64_t)((uint64_t)(found >> 63) >> 1);
        bits[row] = value != value ? INT64_MAX : found;
    }
}

/* ---------------------------------------------------------------- totals of groups */

/* Of few groups all totals are in the cache: to ask for them takes longer than to have them. */
#define EACH_ROW(STEP)                                                              \
    if (groups <= CACHED) {                                                         \
        for (int64_t row = 0; row < rows; row++) STEP;                              \
        return;                                                                     \
    }                                                                               \
    for (int64_t row = 0; row < rows; row++) {                                      \
        if (row + AHEAD < rows) __builtin_prefetch(total + ids[row + AHEAD], 1);    \
        STEP;                                                                       \
    }

API void penstock_count(int64_t *total, int64_t groups, const int64_t *ids, int64_t rows) {
    EACH_ROW(total[ids[row]] += 1)
}

/* Sums wrap around: callers know that they fit. */
API void penstock_add_i64(uint64_t *total, int64_t groups, const int64_t *ids, const uint64_t *values, int64_t rows) {
    EACH_ROW(total[ids[row]] += values[row])
}

API void penstock_add_f64(double *total, int64_t groups, const int64_t *ids, const double *values, int64_t rows) {
    EACH_ROW(total[ids[row]] += values[row])
}

/* Add ``upper`` x 2^64 + ``lower`` to a total of two words, with a sign; what is too much for it is added to ``high``,
 * unless there is none. */
static inline void add_two(uint64_t *total, int64_t *high, uint64_t lower, int64_t upper) {
    total[0] += lower;
    const int carry = total[0] < lower;
    if (!high) {
        total[1] += (uint64_t)upper + (uint64_t)carry;
        return;
    }
    const __int128 sum = (__int128)(int64_t)total[1] + upper + carry;
    const int64_t kept = (int64_t)sum;
    total[1] = (uint64_t)kept;
    if (sum != kept) *high += (int64_t)((sum - kept) >> 64);
}

/* Whole numbers of one, two or four words of 64 bits, the lowest first, are added to totals of two; ``high`` counts
 * multiples of 2^128, and may be 0 where there can be none: as long as all numbers have one word. Those of four words lie
 * within 2^190. Without ``ids`` there is one group. ``valid``: a bit for each row from ``offset`` on, or 0; rows without
 * are left out. */
#define ADD_WORDS(NAME, WIDTH)                                                                                         \
    API void NAME(uint64_t *total, int64_t *high, const int64_t *ids, const uint64_t *values, const uint8_t *valid,    \
                  int64_t offset, int64_t rows) {                                                                      \
        if (WIDTH == 1 && !ids && !valid) {                                                                            \
            __int128 sum = 0;                                                                                          \
            for (int64_t row = 0; row < rows; row++) sum += (int64_t)values[row];                                      \
            add_two(total, high, (uint64_t)sum, (int64_t)(sum >> 64));                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            if (ids && row + AHEAD < rows) __builtin_prefetch(total + 2 * ids[row + AHEAD], 1);                        \
            if (valid && !(valid[(row + offset) >> 3] >> ((row + offset) & 7) & 1)) continue;                          \
            const int64_t group = ids ? ids[row] : 0;                                                                  \
            const uint64_t *const value = values + WIDTH * row;                                                        \
            const int64_t upper = WIDTH == 1 ? (int64_t)value[0] >> 63 : (int64_t)value[WIDTH > 1];                    \
            add_two(total + 2 * group, high ? high + group : 0, value[0], upper);                                      \
            if (WIDTH == 4) high[group] += (int64_t)value[WIDTH / 2] + (upper < 0);                                    \
        }                                                                                                              \
    }

ADD_WORDS(penstock_add_words_1, 1)
ADD_WORDS(penstock_add_words_2, 2)
ADD_WORDS(penstock_add_words_4, 4)

/* Several totals of few groups in one pass, so that the memory of all columns is fetched at once: rows are counted,
 * ``words`` whole numbers are added to totals of two words, ``floats`` doubles to theirs. */
typedef struct {
    int64_t *counts, counted;
    uint64_t *sums[WORDS];
    const uint64_t *whole[WORDS];
    double *totals[FLOATS];
    const double *numbers[FLOATS];
} Pass;

static inline __attribute__((always_inline)) void pass_over(const Pass pass, const int64_t *ids, int64_t rows, int words,
                                                            int floats) {
    for (int64_t row = 0; row < rows; row++) {
        const int64_t group = ids[row];
        pass.counts[group] += pass.counted;
        for (int w = 0; w < words; w++) {
            const uint64_t value = pass.whole[w][row];
            add_two(pass.sums[w] + 2 * group, 0, value, (int64_t)value >> 63);
        }
        for (int f = 0; f < floats; f++) pass.totals[f][group] += pass.numbers[f][row];
    }
}

#define PASS(WIDTH, COUNT) case (WIDTH) * (FLOATS + 1) + (COUNT): pass_over(pass, ids, rows, WIDTH, COUNT); break;
#define PASSES_OF(WIDTH) PASS(WIDTH, 0) PASS(WIDTH, 1) PASS(WIDTH, 2)

API void penstock_totals(const int64_t *ids, int64_t rows, int64_t *counts, uint64_t *const *sums,
                         const uint64_t *const *whole, int64_t words, double *const *totals, const double *const *numbers,
                         int64_t floats) {
    Pass pass = {counts, 1};
    do {
        const int64_t width = words < WORDS ? words : WORDS, count = floats < FLOATS ? floats : FLOATS;
        for (int64_t w = 0; w < width; w++) pass.sums[w] = *sums++, pass.whole[w] = *whole++;
        for (int64_t f = 0; f < count; f++) pass.totals[f] = *totals++, pass.numbers[f] = *numbers++;
        switch (width * (FLOATS + 1) + count) { PASSES_OF(0) PASSES_OF(1) PASSES_OF(2) PASSES_OF(3) PASSES_OF(4) }
        words -= width, floats -= count, pass.counted = 0;
    } while (words || floats);
}

/* NaN is larger than any number for the largest; for the smallest there is none. */
#define EXTREMES(NAME, TYPE)                                                                                     \
    API void penstock_min_##NAME(TYPE *total, int64_t groups, const int64_t *ids, const TYPE *values, int64_t rows) { \
        EACH_ROW(if (values[row] < total[ids[row]]) total[ids[row]] = values[row])                                    \
    }                                                                                                                 \
    API void penstock_max_##NAME(TYPE *total, int64_t groups, const int64_t *ids, const TYPE *values, int64_t rows) { \
        EACH_ROW({ TYPE *t = total + ids[row]; if (!(*t >= values[row] || *t != *t)) *t = values[row]; })             \
    }

EXTREMES(i32, int32_t)
EXTREMES(i64, int64_t)
EXTREMES(f64, double)
