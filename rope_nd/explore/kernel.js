// The score kernel K(d) = mean over pairs of cos <k, d>, d an offset in tokens: what a query scores with a key of the same content,
// over what it scores with itself, for content that is even over the pairs. Nothing here touches the document.

// the rows [n, A] of one head, or of all of them, and how many
function rowsOf(v, head) {
  const whole = head === "mean" || v.heads === 1, length = v.pairs * v.axes;
  return whole ? v.w : v.w.subarray(+head * length, (+head + 1) * length);
}

function at(v, head, offset) {
  const rows = rowsOf(v, head), A = v.axes, n = rows.length / A;
  let sum = 0;
  for (let p = 0; p < n; p++) {
    let angle = 0;
    for (let a = 0; a < A; a++) angle += rows[p * A + a] * offset[a];
    sum += Math.cos(angle);
  }
  return sum / n;
}

// K over offsets -reach .. reach along two axes, the others held: [2 ry + 1, 2 rx + 1]. One axis: ry = 0 and y = null.
// cos(a + b) = cos a cos b - sin a sin b, so that there is one cosine a row and one a column.
function plane(v, head, { y, x, ry, rx, held }) {
  const rows = rowsOf(v, head), A = v.axes, n = rows.length / A, width = 2 * rx + 1, height = 2 * ry + 1;
  const out = new Float64Array(width * height), cos = new Float64Array(width), sin = new Float64Array(width);
  const mirrored = held.every((d, a) => d === 0 || a === x || a === y), last = mirrored ? ry + 1 : height;  // through the query K is even
  for (let p = 0; p < n; p++) {
    const along = rows[p * A + x], down = y === null ? 0 : rows[p * A + y];
    let phase = 0;
    for (let a = 0; a < A; a++) if (a !== x && a !== y) phase += rows[p * A + a] * held[a];
    for (let j = 0; j < width; j++) { cos[j] = Math.cos(along * (j - rx)); sin[j] = Math.sin(along * (j - rx)); }
    for (let i = 0; i < last; i++) {
      const c = Math.cos(phase + down * (i - ry)) / n, s = Math.sin(phase + down * (i - ry)) / n;
      for (let j = 0, k = i * width; j < width; j++, k++) out[k] += c * cos[j] - s * sin[j];
    }
  }
  if (mirrored) for (let k = 0; k < (out.length - 1) / 2; k++) out[out.length - 1 - k] = out[k];
  return out;
}

// K at distances 0, step, .., (n - 1) step along a direction [A]; each pair is turned on by a product, not by a cosine
function line(v, head, direction, n, step) {
  const rows = rowsOf(v, head), A = v.axes, count = rows.length / A, out = new Float64Array(n);
  for (let p = 0; p < count; p++) {
    let angle = 0;
    for (let a = 0; a < A; a++) angle += rows[p * A + a] * direction[a];
    const c = Math.cos(angle * step), s = Math.sin(angle * step);
    let x = 1 / count, y = 0;
    for (let i = 0; i < n; i++) {
      out[i] += x;
      const next = x * c - y * s;
      y = x * s + y * c;
      x = next;
    }
  }
  return out;
}

// Least, mean and greatest of K over directions in a plane, by distance: each [n]
function around(v, head, y, x, n, step, ways = 32) {
  const low = new Float64Array(n).fill(Infinity), high = new Float64Array(n).fill(-Infinity), mean = new Float64Array(n);
  for (let k = 0; k < ways; k++) {
    const direction = new Array(v.axes).fill(0);
    direction[y] = Math.sin(Math.PI * k / ways);
    direction[x] = Math.cos(Math.PI * k / ways);
    const values = line(v, head, direction, n, step);
    for (let i = 0; i < n; i++) {
      low[i] = Math.min(low[i], values[i]);
      high[i] = Math.max(high[i], values[i]);
      mean[i] += values[i] / ways;
    }
  }
  return { low, mean, high };
}

// ---- where it comes back

const RISE = 0.02;  // a return must stand out by this from the lowest value on the way to it

function returned(v, head, offset, value) {
  const n = Math.min(400, Math.max(2, Math.ceil(2 * Math.hypot(...offset))));
  const lowest = Math.min(...line(v, head, offset, n, 1 / n));
  return value - lowest >= RISE ? [{ offset, value, lowest }] : [];
}

// Whole offsets where K is higher than at all neighbours and stands out, highest first; one of each two opposite ones. They are
// looked for in the plane through the query, and along the axes that are not in it.
function returns(v, head, view, map, reaches, most = 5) {
  const { y, x, ry, rx } = view, width = 2 * rx + 1, found = [];
  for (let i = y === null ? 0 : 1; i <= ry; i++) for (let j = 1; j < width - 1; j++) {
    const k = i * width + j, value = map[k];
    if (i === ry && j >= rx) break;
    const near = y === null ? [k - 1, k + 1] : [k - width - 1, k - width, k - width + 1, k - 1, k + 1, k + width - 1, k + width, k + width + 1];
    if (near.some(other => map[other] > value + 1e-12)) continue;
    const offset = new Array(v.axes).fill(0);
    if (y !== null) offset[y] = ry - i;
    offset[x] = rx - j;
    found.push([offset, value]);
  }
  for (let a = 0; a < v.axes; a++) if (a !== x && a !== y) {
    const values = line(v, head, Array.from({ length: v.axes }, (_, b) => +(a === b)), reaches[a] + 1, 1);
    for (let i = 1; i < values.length - 1; i++) if (values[i] >= values[i - 1] && values[i] >= values[i + 1]) {
      found.push([Array.from({ length: v.axes }, (_, b) => a === b ? i : 0), values[i]]);
    }
  }
  found.sort((one, other) => other[1] - one[1]);
  const kept = [];
  for (const [offset, value] of found.slice(0, 40)) {
    if (kept.length < most) kept.push(...returned(v, head, offset, value));
  }
  return kept;
}

// the shortest wavelength along each axis, in tokens, and how many pairs are under two tokens, over all heads
function wavelengths(v) {
  return Array.from({ length: v.axes }, (_, a) => {
    const speeds = Array.from({ length: v.heads * v.pairs }, (_, i) => Math.abs(v.w[i * v.axes + a]));
    return { shortest: 2 * Math.PI / Math.max(...speeds), short: speeds.filter(speed => speed > Math.PI + 1e-9).length };
  });
}
