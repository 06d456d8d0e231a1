// Turns pairs of channels, and sums the gradient of their angles. A plain C interface: no header of PyTorch is needed.
//
// Tensors come in groups, each [B, H, N, D] with a last stride of 1, in memory of its own: lists of places. The first `turned` groups
// are turned, the others copied. Tables are [B|1, H|1, N - prefix, P] float (double for double tensors).
// `m` holds G, B, H, N, D, P, prefix, half layout or not, inverse or not, threads, turned, then three strides (batch, head, token) a
// tensor, zero where it is broadcast.

#include "native.h"

#include <algorithm>

namespace {

template <class T, bool half, bool past>
void turn_rows(const Span& m, Rows<const T> x, Rows<T> y, const Tables<T>& t) {
    int64_t from = 0;
#ifdef EIGHT
    if constexpr (!std::is_same_v<T, double>) {
        using E = Eight<T, half>;
        const auto near = [&](int64_t r) INLINE { x.at == y.at ? foresee(m, y, r) : foresee(m, x, r); };
        from = eights<E>(m, t, near, [&](int64_t r, int64_t i, __m256 c, __m256 s) INLINE {
            __m256 a, b;
            E::load(x[r], i, m.pairs, a, b);
            // no fused multiply and add: the bits of the formula in PyTorch
            E::template store<past>(y[r], i, m.pairs, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)),
                     _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
        });
    }
#endif
    if (2 * from == m.width) return;
    const int64_t step = half ? 1 : 2, apart = half ? m.pairs : 1;
    for (int64_t r = 0; r < m.count; ++r) {
        for (int64_t i = from; i < m.pairs; ++i) {
            const Table<T> a = wide(x[r][step * i]), b = wide(x[r][step * i + apart]), c = t.cos[r][i], s = t.sin[r][i] * t.sign;
            narrow(a * c - b * s, y[r] + step * i);
            narrow(a * s + b * c, y[r] + step * i + apart);
        }
        copy(x[r] + 2 * m.pairs, y[r] + 2 * m.pairs, m.width - 2 * m.pairs);
    }
}

// y was turned by the angles: the gradient g of y is turned back into d, and g2 y1 - g1 y2 added to that of the angles.
template <class T, bool half, bool past>
void back_rows(const Span& m, Rows<const T> g, Rows<const T> y, Rows<T> d, Line<Table<T>> theta, const Tables<T>& t) {
    int64_t from = 0;
#ifdef EIGHT
    if constexpr (!std::is_same_v<T, double>) {
        using E = Eight<T, half>;
        const __m256 way = _mm256_set1_ps(t.sign);
        const auto near = [&](int64_t r) INLINE { foresee(m, g, r), foresee(m, y, r); };
        from = eights<E>(m, t, near, [&](int64_t r, int64_t i, __m256 c, __m256 s) INLINE {
            __m256 a, b, u, v;
            E::load(g[r], i, m.pairs, a, b);
            E::load(y[r], i, m.pairs, u, v);
            const __m256 slope = E::order(_mm256_fmsub_ps(b, u, _mm256_mul_ps(a, v)));
            _mm256_storeu_ps(theta[r] + i, _mm256_fmadd_ps(slope, way, _mm256_loadu_ps(theta[r] + i)));
            E::template store<past>(d[r], i, m.pairs, _mm256_add_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)),
                     _mm256_sub_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
        });
    }
#endif
    if (2 * from == m.width) return;
    const int64_t step = half ? 1 : 2, apart = half ? m.pairs : 1;
    for (int64_t r = 0; r < m.count; ++r) {
        for (int64_t i = from; i < m.pairs; ++i) {
            const int64_t one = step * i, two = one + apart;
            const Table<T> a = wide(g[r][one]), b = wide(g[r][two]), c = t.cos[r][i], s = t.sin[r][i] * t.sign;
            theta[r][i] += t.sign * (b * Table<T>(wide(y[r][one])) - a * Table<T>(wide(y[r][two])));
            narrow(a * c + b * s, d[r] + one);
            narrow(b * c - a * s, d[r] + two);
        }
        copy(g[r] + 2 * m.pairs, d[r] + 2 * m.pairs, m.width - 2 * m.pairs);
    }
}

constexpr int64_t NEAR = 1 << 17;  // bytes of table rows and sums at a time

// Calls f(g, b, h, n, count) for rows as they lie in memory: all heads of a token, or tokens of a head, never prefix tokens together
// with others. A thread has whole spans of tokens, so that it may add to tables that samples and heads share; table rows of a span
// are used for all samples while they are near (`bytes`: theirs, a token). Before and after a span, counted without prefix tokens:
// first(from, to), last(from, to).
template <class F, class A, class Z>
void lines(const Shape& m, int64_t bytes, F f, A first, Z last) {
    const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
    const int64_t near = NEAR / (1 + bytes);
    const int64_t shares = parts(parts(m.tokens, std::max<int64_t>(16, near)), m.threads);  // for each thread as many
    const int64_t span = std::max<int64_t>(1, parts(m.tokens, std::max<int64_t>(1, shares * m.threads)));
    const int64_t spans = parts(m.tokens, span);
#pragma omp parallel for schedule(static) num_threads(m.threads) if (m.threads > 1)
    for (int64_t part = 0; part < spans; ++part) {
        const int64_t from = part * span, to = std::min(from + span, m.tokens), bare = std::min(to, std::max(from, m.prefix));
        first(bare - m.prefix, to - m.prefix);
        if (m.heads_inside()) {
            for (int64_t b = 0; b < m.batch; ++b)
                for (int64_t n = from; n < to; ++n)
                    for (int64_t g = 0; g < m.groups; ++g) f(g, b, 0, n, m.heads);
        } else {
            for (int64_t h = 0; h < m.heads; ++h)
                for (int64_t b = 0; b < m.batch; ++b)
                    for (int64_t g = 0; g < m.groups; ++g) {
                        if (from < bare) f(g, b, h, from, bare - from);
                        if (bare < to) f(g, b, h, bare, to - bare);
                    }
        }
        last(bare - m.prefix, to - m.prefix);
        fence();
    }
}

template <class T, bool past>
void copy_rows(const Span& m, Rows<const T> from, Rows<T> to) {
    for (int64_t r = 0; r < m.count; ++r) {
        foresee(m, from, r);
        past ? copy_past(from[r], to[r], m.width) : copy(from[r], to[r], m.width);
    }
}

template <class T>
Tables<T> tables(const Shape& m, int first, const void* cos, const void* sin, int64_t b, int64_t h, int64_t n) {
    const auto c = static_cast<const Table<T>*>(cos) + m.at(first, b, h, n);
    const auto s = static_cast<const Table<T>*>(sin) + m.at(first + 1, b, h, n);
    return {{c, m.step(first)}, {s, m.step(first + 1)}, Table<T>(m.inverse ? -1 : 1)};
}

template <class T, bool half, bool past>
void turn_all(const Shape& m, const void* const* x, void* const* y, const void* cos, const void* sin) {
    const auto nothing = [](int64_t, int64_t) {};
    lines(m, m.table_bytes<T>(2), [&](int64_t g, int64_t b, int64_t h, int64_t n, int64_t count) {
        const Span span{count, m.pairs, m.width};
        const auto from = m.rows(0, static_cast<const T*>(x[g]), b, h, n);
        const auto to = m.rows(1, static_cast<T*>(y[g]), b, h, n);
        if (n < m.prefix || g >= m.turned) return copy_rows<T, past>(span, from, to);
        turn_rows<T, half, past>(span, from, to, tables<T>(m, 2, cos, sin, b, h, n - m.prefix));
    }, nothing, nothing);
}

// The gradients of the tables: theirs is that of the angles, summed in `along_sin`, by -sin and cos.
template <class T>
struct Sums {
    const Shape& m;
    const Table<T>*cos, *sin;
    Table<T>*along_cos, *along_sin;
    template <class F>
    void each(int64_t from, int64_t to, F f) const {
        const int64_t samples = m.strides[15] ? m.batch : 1, heads = m.strides[16] ? m.heads : 1;
        for (int64_t b = 0; b < samples; ++b)
            for (int64_t h = 0; h < heads; ++h)
                for (int64_t n = from; n < to; ++n) f(m.at(5, b, h, n), m.at(3, b, h, n), m.at(4, b, h, n));
    }
    void begin(int64_t from, int64_t to) const {
        each(from, to, [&](int64_t at, int64_t, int64_t) { std::fill_n(along_sin + at, m.pairs, Table<T>(0)); });
    }
    void end(int64_t from, int64_t to) const {
        each(from, to, [&](int64_t at, int64_t c, int64_t s) {
            for (int64_t i = 0; i < m.pairs; ++i) {
                along_cos[at + i] = -sin[s + i] * along_sin[at + i];
                along_sin[at + i] *= cos[c + i];
            }
        });
    }
};

template <class T, bool half, bool past>
void back_all(const Shape& m, const void* const* grad, const void* const* y, void* const* d, const Sums<T>& sums) {
    const auto row = [&](int64_t g, int64_t b, int64_t h, int64_t n, int64_t count) {
        const Span span{count, m.pairs, m.width};
        const auto from = m.rows(0, static_cast<const T*>(grad[g]), b, h, n);
        const auto to = m.rows(1, static_cast<T*>(d[g]), b, h, n);
        if (n < m.prefix || g >= m.turned) return copy_rows<T, past>(span, from, to);
        const auto turned = m.rows(2, static_cast<const T*>(y[g]), b, h, n);
        const Line<Table<T>> theta{sums.along_sin + m.at(5, b, h, n - m.prefix), m.step(5)};
        back_rows<T, half, past>(span, from, turned, to, theta, tables<T>(m, 3, sums.cos, sums.sin, b, h, n - m.prefix));
    };
    lines(m, m.table_bytes<T>(3), row, [&](int64_t from, int64_t to) { sums.begin(from, to); },
          [&](int64_t from, int64_t to) { sums.end(from, to); });
}

// Calls f with the layout, and whether what is written should go past the caches: to other memory than what is read, of which each
// row begins at a multiple of 32 bytes, and too much for them.
template <class T, class F>
void with_way(const Shape& m, const void* const* from, void* const* to, F f) {
    const std::true_type yes;
    const std::false_type no;
    const auto whole = [](int64_t bytes) { return bytes % 32 == 0; };
    const int64_t size = sizeof(T);
    bool past = m.groups * m.batch * m.heads * m.tokens * m.width * size >= (4 << 20);
    for (int64_t g = 0; g < m.groups; ++g) past = past && from[g] != to[g] && whole(reinterpret_cast<intptr_t>(to[g]));
    for (int i = 3; i < 6; ++i) past = past && whole(m.strides[i] * size);
    past = past && whole(m.width * size) && (!m.half || whole(m.pairs * size));
    if (m.half) {
        past ? f(yes, yes) : f(yes, no);
    } else {
        past ? f(no, yes) : f(no, no);
    }
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

extern "C" int turn(int dtype, const void* const* x, void* const* y, const void* cos, const void* sin, const int64_t* m) {
    return with_type(dtype, [&](auto kind) {
        using T = decltype(kind);
        Shape shape(m);
        shape.join<T>(x, y);
        with_way<T>(shape, x, y, [&](auto half, auto past) { turn_all<T, half.value, past.value>(shape, x, y, cos, sin); });
    });
}

extern "C" int back(int dtype, const void* const* g, void* const* d, const void* const* y, const void* cos, const void* sin,
                    void* along_cos, void* along_sin, const int64_t* m) {
    const Shape shape(m);
    return with_type(dtype, [&](auto kind) {
        using T = decltype(kind);
        using W = Table<T>;
        const Sums<T> sums{shape, static_cast<const W*>(cos), static_cast<const W*>(sin), static_cast<W*>(along_cos),
                           static_cast<W*>(along_sin)};
        with_way<T>(shape, g, d, [&](auto half, auto past) { back_all<T, half.value, past.value>(shape, g, y, d, sums); });
    });
}
