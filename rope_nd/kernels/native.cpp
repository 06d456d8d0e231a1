// Turns pairs of channels, and sums the gradient of their angles. A plain C interface: no header of PyTorch is needed.
//
// Tensors are [G, B, H, N, D] with a last stride of 1, tables [B|1, H|1, N - prefix, P] float (double for double tensors).
// `m` holds G, B, H, N, D, P, prefix, half layout or not, inverse or not, threads, then four strides (group, batch, head, token) a
// tensor, zero where it is broadcast.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define EIGHT 1
#endif

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

inline __m256 eight(const float* p) { return _mm256_loadu_ps(p); }
inline void keep(float* p, __m256 v) { _mm256_storeu_ps(p, v); }
inline __m256 eight(const bf16* p) {
    const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
inline void keep(bf16* p, __m256 v) {
    const __m256i r = _mm256_srli_epi32(rounded(v), 16);
    const __m128i s = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), s);
}
#ifdef __FLT16_MAX__
inline __m256 eight(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline void keep(f16* p, __m256 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
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
    static void store(T* p, int64_t i, int64_t pairs, __m256 a, __m256 b) {
        if (half) {
            keep(p + i, a), keep(p + pairs + i, b);
        } else {
            keep(p + 2 * i, _mm256_unpacklo_ps(a, b)), keep(p + 2 * i + 8, _mm256_unpackhi_ps(a, b));
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
    static void store(bf16* p, int64_t i, int64_t, __m256 a, __m256 b) {
        const __m256i high = _mm256_and_si256(rounded(b), _mm256_set1_epi32(int(0xffff0000u)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 2 * i), _mm256_or_si256(_mm256_srli_epi32(rounded(a), 16), high));
    }
};
#endif

template <class T, bool half>
void turn_row(const T* x, T* y, const Table<T>* cos, const Table<T>* sin, int64_t pairs, Table<T> sign) {
    int64_t i = 0;
#ifdef EIGHT
    if constexpr (!std::is_same_v<T, double>) {
        using E = Eight<T, half>;
        const __m256 way = _mm256_set1_ps(sign);
        for (; i + 8 <= pairs; i += 8) {
            __m256 a, b;
            E::load(x, i, pairs, a, b);
            const __m256 c = E::order(_mm256_loadu_ps(cos + i)), s = _mm256_mul_ps(E::order(_mm256_loadu_ps(sin + i)), way);
            // no fused multiply and add: the bits of the formula in PyTorch
            E::store(y, i, pairs, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)),
                     _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
        }
    }
#endif
    const int64_t step = half ? 1 : 2, apart = half ? pairs : 1;
    for (; i < pairs; ++i) {
        const Table<T> a = wide(x[step * i]), b = wide(x[step * i + apart]), c = cos[i], s = sin[i] * sign;
        narrow(a * c - b * s, y + step * i);
        narrow(a * s + b * c, y + step * i + apart);
    }
}

// y was turned by the angles: the gradient g of y is turned back into d, and g2 y1 - g1 y2 added to that of the angles.
template <class T, bool half>
void back_row(const T* g, const T* y, T* d, Table<T>* theta, const Table<T>* cos, const Table<T>* sin, int64_t pairs, Table<T> sign) {
    int64_t i = 0;
#ifdef EIGHT
    if constexpr (!std::is_same_v<T, double>) {
        using E = Eight<T, half>;
        const __m256 way = _mm256_set1_ps(sign);
        for (; i + 8 <= pairs; i += 8) {
            __m256 a, b, u, v;
            E::load(g, i, pairs, a, b);
            E::load(y, i, pairs, u, v);
            const __m256 c = E::order(_mm256_loadu_ps(cos + i)), s = _mm256_mul_ps(E::order(_mm256_loadu_ps(sin + i)), way);
            const __m256 slope = E::order(_mm256_fmsub_ps(b, u, _mm256_mul_ps(a, v)));
            _mm256_storeu_ps(theta + i, _mm256_fmadd_ps(slope, way, _mm256_loadu_ps(theta + i)));
            E::store(d, i, pairs, _mm256_add_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)),
                     _mm256_sub_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
        }
    }
#endif
    const int64_t step = half ? 1 : 2, apart = half ? pairs : 1;
    for (; i < pairs; ++i) {
        const Table<T> a = wide(g[step * i]), b = wide(g[step * i + apart]), c = cos[i], s = sin[i] * sign;
        theta[i] += sign * (b * Table<T>(wide(y[step * i])) - a * Table<T>(wide(y[step * i + apart])));
        narrow(a * c + b * s, d + step * i);
        narrow(b * c - a * s, d + step * i + apart);
    }
}

struct Shape {
    int64_t groups, batch, heads, tokens, width, pairs, prefix;
    bool half, inverse;
    int threads;
    const int64_t* strides;
    explicit Shape(const int64_t* m)
        : groups(m[0]), batch(m[1]), heads(m[2]), tokens(m[3]), width(m[4]), pairs(m[5]), prefix(m[6]), half(m[7]),
          inverse(m[8]), threads(int(m[9])), strides(m + 10) {}
    int64_t at(int tensor, int64_t g, int64_t b, int64_t h, int64_t n) const {
        const int64_t* s = strides + 4 * tensor;
        return g * s[0] + b * s[1] + h * s[2] + n * s[3];
    }
};

// Calls f(g, b, h, n) for every row. A thread has whole spans of tokens, so that it may add to tables that samples and heads share;
// table rows of a span are used for all samples while they are near, and rows are taken as they lie in memory.
template <class F>
void rows(const Shape& m, int64_t bytes, F f) {
    const int64_t span = std::max<int64_t>(1, std::min<int64_t>((m.tokens + m.threads - 1) / m.threads,
                                                                std::max<int64_t>(16, 65536 / (1 + bytes * m.heads * m.groups))));
    const int64_t spans = (m.tokens + span - 1) / span;
    const bool heads_inside = m.strides[2] <= m.strides[3];
#pragma omp parallel for schedule(static) num_threads(m.threads) if (m.threads > 1)
    for (int64_t part = 0; part < spans; ++part) {
        const int64_t from = part * span, to = std::min(from + span, m.tokens);
        for (int64_t b = 0; b < m.batch; ++b) {
            if (heads_inside) {
                for (int64_t n = from; n < to; ++n)
                    for (int64_t g = 0; g < m.groups; ++g)
                        for (int64_t h = 0; h < m.heads; ++h) f(g, b, h, n);
            } else {
                for (int64_t g = 0; g < m.groups; ++g)
                    for (int64_t h = 0; h < m.heads; ++h)
                        for (int64_t n = from; n < to; ++n) f(g, b, h, n);
            }
        }
    }
}

// Asks for a row that will be needed soon: gaps between rows (v, in a packed projection) are beyond what processors foresee.
template <class T>
void foresee(const Shape& m, int tensor, const T* row) {
    const int64_t* s = m.strides + 4 * tensor;
    const char* p = reinterpret_cast<const char*>(row + (s[2] <= s[3] ? 2 : 16) * s[3]);
    for (int64_t line = 0; line < m.width * int64_t(sizeof(T)); line += 64) __builtin_prefetch(p + line, 1);
}

template <class T>
void copy(const T* from, T* to, int64_t count) {
    if (from != to && count > 0) std::memcpy(to, from, size_t(count) * sizeof(T));
}

template <class T, bool half>
void turn_all(const Shape& m, const void* x, void* y, const void* cos, const void* sin) {
    rows(m, m.width * int64_t(sizeof(T)), [&](int64_t g, int64_t b, int64_t h, int64_t n) {
        const T* from = static_cast<const T*>(x) + m.at(0, g, b, h, n);
        foresee(m, 0, from);
        T* to = static_cast<T*>(y) + m.at(1, g, b, h, n);
        if (n < m.prefix) return copy(from, to, m.width);
        const int64_t c = m.at(2, g, b, h, n - m.prefix), s = m.at(3, g, b, h, n - m.prefix);
        const Table<T> sign = m.inverse ? -1 : 1;
        turn_row<T, half>(from, to, static_cast<const Table<T>*>(cos) + c, static_cast<const Table<T>*>(sin) + s, m.pairs, sign);
        copy(from + 2 * m.pairs, to + 2 * m.pairs, m.width - 2 * m.pairs);
    });
}

template <class T, bool half>
void back_all(const Shape& m, const void* grad, const void* y, void* d, void* theta, const void* cos, const void* sin) {
    rows(m, m.width * int64_t(sizeof(T)), [&](int64_t g, int64_t b, int64_t h, int64_t n) {
        const T* from = static_cast<const T*>(grad) + m.at(0, g, b, h, n);
        foresee(m, 0, from);
        T* to = static_cast<T*>(d) + m.at(1, g, b, h, n);
        if (n < m.prefix) return copy(from, to, m.width);
        const int64_t c = m.at(3, g, b, h, n - m.prefix), s = m.at(4, g, b, h, n - m.prefix);
        const T* turned = static_cast<const T*>(y) + m.at(2, g, b, h, n);
        foresee(m, 2, turned);
        Table<T>* sum = static_cast<Table<T>*>(theta) + m.at(5, g, b, h, n - m.prefix);
        const Table<T> sign = m.inverse ? -1 : 1;
        back_row<T, half>(from, turned, to, sum, static_cast<const Table<T>*>(cos) + c, static_cast<const Table<T>*>(sin) + s,
                          m.pairs, sign);
        copy(from + 2 * m.pairs, to + 2 * m.pairs, m.width - 2 * m.pairs);
    });
}

template <class F>
int with_type(int dtype, F f) {
    switch (dtype) {
        case 0: f(float()); return 0;
        case 1: f(bf16()); return 0;
        case 2: f(double()); return 0;
#ifdef __FLT16_MAX__
        case 3: f(f16()); return 0;
#endif
        default: return 1;
    }
}

}  // namespace

extern "C" int turn(int dtype, const void* x, void* y, const void* cos, const void* sin, const int64_t* m) {
    const Shape shape(m);
    return with_type(dtype, [&](auto kind) {
        using T = decltype(kind);
        shape.half ? turn_all<T, true>(shape, x, y, cos, sin) : turn_all<T, false>(shape, x, y, cos, sin);
    });
}

extern "C" int back(int dtype, const void* g, void* d, const void* y, const void* cos, const void* sin, void* theta,
                    const int64_t* m) {
    const Shape shape(m);
    return with_type(dtype, [&](auto kind) {
        using T = decltype(kind);
        shape.half ? back_all<T, true>(shape, g, y, d, theta, cos, sin) : back_all<T, false>(shape, g, y, d, theta, cos, sin);
    });
}
