// Numbers of all kinds, eight at a time where the processor can; rows of tensors and tables.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define EIGHT 1
#endif

#define INLINE __attribute__((always_inline))

namespace {

struct bf16 {
    uint16_t bits;
};

inline float wide(float v) { return v; }
inline double wide(double v) { return v; }
inline float wide(bf16 v) {
    uint32_t u = uint32_t(v.bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

inline void narrow(float v, float* p) { *p = v; }
inline void narrow(double v, double* p) { *p = v; }
inline void narrow(float v, bf16* p) {  // to nearest, ties to even; NaN stays NaN
    uint32_t u;
    std::memcpy(&u, &v, 4);
    uint32_t near = u + 0x7fffu + ((u >> 16) & 1u);
    p->bits = uint16_t((v != v ? u | 0x400000u : near) >> 16);
}

#ifdef __FLT16_MAX__
using f16 = _Float16;
inline float wide(f16 v) { return float(v); }
inline void narrow(float v, f16* p) { *p = f16(v); }
#endif

template <class T>
using Table = std::conditional_t<std::is_same_v<T, double>, double, float>;

// What went past the caches is there for other threads after this.
inline void fence() {
#ifdef EIGHT
    _mm_sfence();
#endif
}

#ifdef EIGHT
// Eight pairs (a, b) at a time. Where a load leaves them in the order 0 1 4 5 2 3 6 7, `order` puts table entries in it (and back).

inline __m256 swapped(__m256 v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); }

inline __m256i rounded(__m256 v) {  // bf16 in the upper half of each lane
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(near), _mm256_castsi256_ps(quiet), nan));
}

// Stores by which much that is written goes past the caches (`past`), so that it need not be read first.
template <bool past>
void put(float* p, __m256 v) { past ? _mm256_stream_ps(p, v) : _mm256_storeu_ps(p, v); }
template <bool past>
void put(void* p, __m256i v) {
    past ? _mm256_stream_si256(static_cast<__m256i*>(p), v) : _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
template <bool past>
void put(void* p, __m128i v) {
    past ? _mm_stream_si128(static_cast<__m128i*>(p), v) : _mm_storeu_si128(static_cast<__m128i*>(p), v);
}

inline __m256 eight(const float* p) { return _mm256_loadu_ps(p); }
template <bool past>
void keep(float* p, __m256 v) { put<past>(p, v); }
inline __m256 eight(const bf16* p) {
    const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
template <bool past>
void keep(bf16* p, __m256 v) {
    const __m256i r = _mm256_srli_epi32(rounded(v), 16);
    put<past>(p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}
#ifdef __FLT16_MAX__
inline __m256 eight(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
template <bool past>
void keep(f16* p, __m256 v) { put<past>(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
#endif

template <class T, bool half>
struct Eight {
    static __m256 order(__m256 v) { return half ? v : swapped(v); }
    static void load(const T* p, int64_t i, int64_t pairs, __m256& a, __m256& b) {
        if (half) {
            a = eight(p + i), b = eight(p + pairs + i);
        } else {
            const __m256 low = eight(p + 2 * i), high = eight(p + 2 * i + 8);
            a = _mm256_shuffle_ps(low, high, 0x88), b = _mm256_shuffle_ps(low, high, 0xdd);
        }
    }
    template <bool past>
    static void store(T* p, int64_t i, int64_t pairs, __m256 a, __m256 b) {
        if (half) {
            keep<past>(p + i, a), keep<past>(p + pairs + i, b);
        } else {
            keep<past>(p + 2 * i, _mm256_unpacklo_ps(a, b)), keep<past>(p + 2 * i + 8, _mm256_unpackhi_ps(a, b));
        }
    }
};

template <>
struct Eight<bf16, false> {  // a pair is one lane of 32 bits
    static __m256 order(__m256 v) { return v; }
    static void load(const bf16* p, int64_t i, int64_t, __m256& a, __m256& b) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 2 * i));
        a = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        b = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int(0xffff0000u))));
    }
    template <bool past>
    static void store(bf16* p, int64_t i, int64_t, __m256 a, __m256 b) {
        const __m256i high = _mm256_and_si256(rounded(b), _mm256_set1_epi32(int(0xffff0000u)));
        put<past>(p + 2 * i, _mm256_or_si256(_mm256_srli_epi32(rounded(a), 16), high));
    }
};
#endif

// Rows that are used one after the other: heads of a token, or tokens of a head. `step`: elements from row to row.
template <class T>
struct Line {
    T* at;
    int64_t step;
    T* operator[](int64_t r) const { return at + r * step; }
};

// Rows of a tensor. `ahead`: elements from a row to one that will be needed soon.
template <class T>
struct Rows : Line<T> {
    int64_t ahead;
};

template <class T>
struct Tables {
    Line<const Table<T>> cos, sin;
    Table<T> sign;
};

struct Span {
    int64_t count, pairs, width;
};

struct Shape {
    int64_t groups, batch, heads, tokens, width, pairs, prefix;
    bool half, inverse;
    int threads;
    int64_t turned;
    const int64_t* strides;
    explicit Shape(const int64_t* m)
        : groups(m[0]), batch(m[1]), heads(m[2]), tokens(m[3]), width(m[4]), pairs(m[5]), prefix(m[6]), half(m[7]),
          inverse(m[8]), threads(int(m[9])), turned(m[10]), strides(m + 11) {}
    // Groups that continue the heads, as q and k do in a packed projection, are more heads where all share their tables.
    template <class T>
    void join(const void* const* x, const void* const* y) {
        bool follow = turned == groups && strides[7] == 0 && strides[10] == 0;
        for (int64_t g = 1; g < groups; ++g)
            follow = follow && static_cast<const T*>(x[g]) == static_cast<const T*>(x[0]) + g * heads * strides[1] &&
                     static_cast<const T*>(y[g]) == static_cast<const T*>(y[0]) + g * heads * strides[4];
        if (follow) heads *= groups, groups = turned = 1;
    }
    template <class T>
    int64_t table_bytes(int cos) const {  // of cos, sin and a sum, that are used for a token one after the other
        return 3 * pairs * int64_t(sizeof(Table<T>)) * (strides[3 * cos + 1] && heads_inside() ? heads : 1);
    }
    bool heads_inside() const { return strides[1] <= strides[2]; }  // as what is read first lies in memory
    int64_t step(int tensor) const { return strides[3 * tensor + (heads_inside() ? 1 : 2)]; }
    int64_t ahead(int tensor) const { return (heads_inside() ? 3 : 8) * strides[3 * tensor + 2]; }
    int64_t at(int tensor, int64_t b, int64_t h, int64_t n) const {
        const int64_t* s = strides + 3 * tensor;
        return b * s[0] + h * s[1] + n * s[2];
    }
    template <class T>
    Rows<T> rows(int tensor, T* place, int64_t b, int64_t h, int64_t n) const {
        return {{place + at(tensor, b, h, n), step(tensor)}, ahead(tensor)};
    }
};

// Asks for a row that will be needed soon: gaps between rows, as v leaves in a packed projection, are beyond what processors foresee.
template <class T>
INLINE inline void foresee(const Span& m, const Rows<T>& rows, int64_t r) {
    const char* p = reinterpret_cast<const char*>(rows[r] + rows.ahead);
    for (int64_t line = 0; line < m.width * int64_t(sizeof(T)); line += 64) __builtin_prefetch(p + line, !std::is_const_v<T>);
}

template <class T>
void copy(const T* from, T* to, int64_t count) {
    if (from != to && count > 0) std::memcpy(to, from, size_t(count) * sizeof(T));
}

// Past the caches, a multiple of 32 bytes.
template <class T>
void copy_past(const T* from, T* to, int64_t count) {
#ifdef EIGHT
    const auto *p = reinterpret_cast<const __m256i*>(from), *end = reinterpret_cast<const __m256i*>(from + count);
    for (auto* q = reinterpret_cast<__m256i*>(to); p < end; ++p, ++q) put<true>(q, _mm256_loadu_si256(p));
#else
    copy(from, to, count);
#endif
}

#ifdef EIGHT
// Calls near(r), then f(r, i, c, s) for the pairs i to i + 7, for every row r; the first pair that is left. Rows that share their
// tables have them made ready once; for heads of 64 channels (four times eight pairs) they stay in registers.
template <class E, int64_t known, class T, class N, class F>
INLINE inline int64_t eights_of(const Span& m, const Tables<T>& t, N near, F f) {
    constexpr int64_t most = known ? known : 32;
    const __m256 way = _mm256_set1_ps(t.sign);
    const int64_t count = known ? known : m.pairs / 8;
    const auto cosine = [&](const float* at, int64_t i) INLINE { return E::order(_mm256_loadu_ps(at + 8 * i)); };
    const auto sine = [&](const float* at, int64_t i) INLINE { return _mm256_mul_ps(E::order(_mm256_loadu_ps(at + 8 * i)), way); };
    if (t.cos.step == 0 && t.sin.step == 0 && m.count > 1 && count <= most) {
        __m256 c[most], s[most];
        for (int64_t i = 0; i < count; ++i) c[i] = cosine(t.cos.at, i), s[i] = sine(t.sin.at, i);
        for (int64_t r = 0; r < m.count; ++r) {
            near(r);
            for (int64_t i = 0; i < count; ++i) f(r, 8 * i, c[i], s[i]);
        }
    } else {
        for (int64_t r = 0; r < m.count; ++r) {
            near(r);
            const float *cos = t.cos[r], *sin = t.sin[r];
            for (int64_t i = 0; i < count; ++i) f(r, 8 * i, cosine(cos, i), sine(sin, i));
        }
    }
    return 8 * count;
}

template <class E, class T, class N, class F>
INLINE inline int64_t eights(const Span& m, const Tables<T>& t, N near, F f) {
    return m.pairs == 32 ? eights_of<E, 4>(m, t, near, f) : eights_of<E, 0>(m, t, near, f);
}
#endif

}  // namespace
