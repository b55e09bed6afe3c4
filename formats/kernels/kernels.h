/* What the compiled kernels need of C: CRC-32C, and integers in the byte order of a format.
 *
 * CRC-32C is calculated by the processor's instruction, if it has one (x86 with SSE4.2, ARMv8 with CRC32), and by eight
 * tables, each for one of eight bytes, if not. `crc32c_init` finds out which, and makes the tables.
 *
 * An instruction takes eight bytes, and three cycles until its result can be used; another one may begin in each of
 * them. So three stretches of the data are calculated side by side. They are joined as a CRC is linear: what the bytes
 * of the CRC of a stretch become when the zeros of one follow is looked up, and added to the CRC of the next one.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define HAS_CRC __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <sys/auxv.h>
#define CRC_TARGET
#define HAS_CRC (getauxval(AT_HWCAP) & (1 << 7)) /* HWCAP_CRC32 */
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LITTLE_32 __builtin_bswap32
#define LITTLE_64 __builtin_bswap64
#define BIG_32
#define BIG_64
#else
#define LITTLE_32
#define LITTLE_64
#define BIG_32 __builtin_bswap32
#define BIG_64 __builtin_bswap64
#endif

static inline void store_le32(uint8_t *at, uint32_t value) { value = LITTLE_32(value); memcpy(at, &value, 4); }
static inline void store_le64(uint8_t *at, uint64_t value) { value = LITTLE_64(value); memcpy(at, &value, 8); }
static inline void store_be32(uint8_t *at, uint32_t value) { value = BIG_32(value); memcpy(at, &value, 4); }
static inline void store_be64(uint8_t *at, uint64_t value) { value = BIG_64(value); memcpy(at, &value, 8); }
static inline uint32_t load_le32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return LITTLE_32(value); }
static inline uint32_t load_be32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return BIG_32(value); }
static inline uint64_t load_be64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return BIG_64(value); }
static inline uint64_t load_le64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return LITTLE_64(value); }

#define POLYNOMIAL 0x82F63B78u /* of Castagnoli, reflected */

static uint32_t crc_tables[8][256]; /* row k: what a byte becomes that k bytes of zeros follow */

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
    crc = ~crc;
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = crc ^ (at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = crc_tables[7][low & 0xFF] ^ crc_tables[6][low >> 8 & 0xFF] ^ crc_tables[5][low >> 16 & 0xFF]
            ^ crc_tables[4][low >> 24] ^ crc_tables[3][at[4]] ^ crc_tables[2][at[5]] ^ crc_tables[1][at[6]]
            ^ crc_tables[0][at[7]];
    }
    for (; size; at++, size--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *at) & 0xFF];
    return ~crc;
}

static uint32_t (*crc32c)(uint32_t crc, const uint8_t *at, size_t size) = crc_by_tables;

#ifdef CRC_TARGET

#if defined(__x86_64__)
#define CRC_8(crc, value) ((uint32_t)_mm_crc32_u64(crc, value))
#define CRC_1(crc, value) _mm_crc32_u8(crc, value)
#else
static inline uint32_t CRC_8(uint32_t crc, uint64_t value) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(value));
    return crc;
}
static inline uint32_t CRC_1(uint32_t crc, uint8_t value) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)value));
    return crc;
}
#endif

enum { LONG_STRETCH = 256, SHORT_STRETCH = 64 };

static uint32_t after_long[4][256], after_short[4][256]; /* what byte k becomes that a stretch of zeros follows */

static inline uint32_t after(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

CRC_TARGET static inline uint32_t crc_of_stretches(
    uint32_t crc, const uint8_t *at, size_t stretch, uint32_t table[4][256]
) {
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = at + stretch; at < end; at += 8) {
        uint64_t values[3];
        memcpy(values, at, 8);
        memcpy(values + 1, at + stretch, 8);
        memcpy(values + 2, at + 2 * stretch, 8);
        crc = CRC_8(crc, LITTLE_64(values[0]));
        second = CRC_8(second, LITTLE_64(values[1]));
        third = CRC_8(third, LITTLE_64(values[2]));
    }
    return after(table, after(table, crc) ^ second) ^ third;
}

CRC_TARGET static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *at, size_t size) {
    crc = ~crc;
    for (; size >= 3 * LONG_STRETCH; at += 3 * LONG_STRETCH, size -= 3 * LONG_STRETCH)
        crc = crc_of_stretches(crc, at, LONG_STRETCH, after_long);
    for (; size >= 3 * SHORT_STRETCH; at += 3 * SHORT_STRETCH, size -= 3 * SHORT_STRETCH)
        crc = crc_of_stretches(crc, at, SHORT_STRETCH, after_short);
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t value;
        memcpy(&value, at, 8);
        crc = CRC_8(crc, LITTLE_64(value));
    }
    for (; size; at++, size--)
        crc = CRC_1(crc, *at);
    return ~crc;
}

static void fill_after(uint32_t table[4][256], size_t stretch) {
    static const uint8_t zeros[LONG_STRETCH];
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++)
            table[byte][value] = ~crc_by_tables(~(value << 8 * byte), zeros, stretch);
}

#endif

static void crc32c_init(int uses_instruction) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        crc_tables[0][value] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t crc = crc_tables[row - 1][value];
            crc_tables[row][value] = crc >> 8 ^ crc_tables[0][crc & 0xFF];
        }
#ifdef CRC_TARGET
    if (uses_instruction && HAS_CRC) {
        fill_after(after_long, LONG_STRETCH);
        fill_after(after_short, SHORT_STRETCH);
        crc32c = crc_by_instruction;
        return;
    }
#endif
    crc32c = crc_by_tables;
}
