// Included before everything else when llama.cpp is compiled by GCC: makes the compiler see which memory the
// AMX tile instructions read and write.
//
// GCC 12's own definitions do not say it (the configuration is declared with 8 of its 64 bytes, tiles with
// none), so stores for them are removed as dead, and the program dies with SIGILL or computes garbage
// (llama.cpp PR 26954). Turning dead store elimination off helps too, and makes the kernels a tenth slower.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define AGENTSPEC_MEMORY __asm__ volatile("" ::: "memory")

#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)) : "memory")

#ifdef _tile_loadd
#undef _tile_loadd
#define _tile_loadd(dst, base, stride)           \
    do {                                         \
        AGENTSPEC_MEMORY;                        \
        _tile_loadd_internal(dst, base, stride); \
        AGENTSPEC_MEMORY;                        \
    } while (0)
#endif

#ifdef _tile_stored
#undef _tile_stored
#define _tile_stored(src, base, stride)           \
    do {                                          \
        AGENTSPEC_MEMORY;                         \
        _tile_stored_internal(src, base, stride); \
        AGENTSPEC_MEMORY;                         \
    } while (0)
#endif
#endif
