// <immintrin.h> for the files that are compiled for AVX-512. The header of g++ 12 warns about its own
// _mm512_undefined_ps() wherever that is inlined.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
