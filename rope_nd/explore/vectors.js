// Wave vectors of a state, before and after scaling. Vectors are { heads, pairs, axes, w }, w of [H, P, A] in radians per unit of
// position, or per token once `perToken` has multiplied them by the steps of a grid. Nothing here touches the document.

const unpacked = new Map();
function unpack(index) {
  if (!unpacked.has(index)) {
    const bytes = Uint8Array.from(atob(DATA.pool[index]), letter => letter.charCodeAt(0));
    unpacked.set(index, new Float64Array(bytes.buffer));
  }
  return unpacked.get(index);
}

const variantOf = state => DATA.encodings[state.encoding].axes[state.axes];

// w = theta^(-e) u of the library's tables
function tabled(state) {
  const [u, e, heads] = variantOf(state).at[state.width], axes = state.axes;
  const toward = unpack(u), exponent = unpack(e), w = new Float64Array(toward.length);
  for (let i = 0; i < w.length; i++) w[i] = toward[i] * state.theta ** -exponent[Math.floor(i / axes)];
  return { heads, pairs: w.length / heads / axes, axes, w };
}

// w = theta^(-i / F_a) e_a for the i-th of the F_a pairs of axis a; what is left stands still
function axial(pairs, counts, theta) {
  const axes = counts.length, w = new Float64Array(pairs * axes);
  let row = 0;
  counts.forEach((count, axis) => {
    for (let i = 0; i < count; i++) w[row++ * axes + axis] = theta ** (-i / count);
  });
  return { heads: 1, pairs, axes, w };
}

function counts(state) {
  if (state.leftover === "counts") return state.split;
  const pairs = state.width / 2, each = Math.floor(pairs / state.axes), left = pairs - each * state.axes;
  const to = { even: axis => axis < left ? 1 : 0, unrotated: () => 0 }[state.leftover] ?? (axis => axis === +state.leftover ? left : 0);
  return Array.from({ length: state.axes }, (_, axis) => each + to(axis));
}

function vectors(state) {
  if (state.encoding === "axial" && state.leftover !== "even") return axial(state.width / 2, counts(state), state.theta);
  return tabled(state);
}

function each(v, change) {  // change(h, p, a, i) gives the new component
  const w = new Float64Array(v.w.length);
  for (let h = 0, i = 0; h < v.heads; h++) for (let p = 0; p < v.pairs; p++) for (let a = 0; a < v.axes; a++, i++) w[i] = change(h, p, a, i);
  return { ...v, w };
}

function size(v, h, p, length) {  // |(length_a w_a)_a|, with lengths of one: |w|
  let sum = 0;
  for (let a = 0; a < v.axes; a++) sum += (v.w[(h * v.pairs + p) * v.axes + a] * (length ? length[a] : 1)) ** 2;
  return Math.sqrt(sum);
}

const turns = (v, h, p, length) => size(v, h, p, length) / (2 * Math.PI);

// ---- the rules of rope_nd.scaling, each (vectors, scale [A], length [A], options)

const RULES = {
  pi: (v, scale) => each(v, (h, p, a, i) => v.w[i] / scale[a]),
  ntk(v, scale) {
    const logs = Float64Array.from({ length: v.heads * v.pairs }, (_, i) => Math.log(size(v, Math.floor(i / v.pairs), i % v.pairs)));
    const ends = [];
    for (let h = 0; h < v.heads; h++) for (let a = 0; a < v.axes; a++) {
      const looking = [];
      for (let p = 0; p < v.pairs; p++) if (v.w[(h * v.pairs + p) * v.axes + a] !== 0) looking.push(logs[h * v.pairs + p]);
      ends.push([Math.max(...looking), Math.min(...looking)]);
    }
    return each(v, (h, p, a, i) => {
      const [top, bottom] = ends[h * v.axes + a];
      return v.w[i] === 0 || !(top - bottom > 1e-6) ? v.w[i] : v.w[i] * scale[a] ** -((top - logs[h * v.pairs + p]) / (top - bottom));
    });
  },
  dynamic_ntk: (v, scale, length, { alpha }) => RULES.ntk(v, scale.map(s => Math.max(1, alpha * s - (alpha - 1)))),
  yarn(v, scale, length, { slow, fast }) {
    return each(v, (h, p, a, i) => {
      const keep = Math.min(1, Math.max(0, (turns(v, h, p, length) - slow) / (fast - slow)));
      return v.w[i] * (keep + (1 - keep) / scale[a]);
    });
  },
  llama3: (v, scale, length, { low, high }) => RULES.yarn(v, scale, length, { slow: low, fast: high }),
  resonance(v) {
    return each(v, (h, p, a, i) => {
      const wave = 2 * Math.PI / size(v, h, p);
      return Number.isFinite(wave) && wave > 1 ? v.w[i] * wave / Math.max(1, Math.round(wave)) : v.w[i];
    });
  },
  truncate(v, scale, length, { keep, min_turns }) {
    const kept = keep === null ? v : fastest(v, keep);
    return min_turns === null ? kept : each(kept, (h, p, a, i) => turns(v, h, p, length) >= min_turns ? kept.w[i] : 0);
  },
};

// the fastest floor(keep n) of the n pairs that look mostly along each axis, of equals (but for rounding) the first
function fastest(v, keep) {
  const lasting = new Set();
  for (let h = 0; h < v.heads; h++) {
    const groups = Array.from({ length: v.axes }, () => []);
    for (let p = 0; p < v.pairs; p++) {
      const row = v.w.subarray((h * v.pairs + p) * v.axes, (h * v.pairs + p + 1) * v.axes).map(Math.abs);
      const length = size(v, h, p);
      if (length > 0) groups[row.indexOf(Math.max(...row))].push([length, p]);
    }
    for (const group of groups) {
      group.sort((one, other) => Math.abs(other[0] - one[0]) > 1e-9 * one[0] ? other[0] - one[0] : one[1] - other[1]);
      for (const [, p] of group.slice(0, Math.floor(keep * group.length + 1e-9))) lasting.add(h * v.pairs + p);
    }
  }
  return each(v, (h, p, a, i) => lasting.has(h * v.pairs + p) ? v.w[i] : 0);
}

// ---- positions: the step between neighbours along each axis, as rope_nd.positions.steps

function measured(state) {
  const own = variantOf(state).coordinates;
  return state.coordinates === "own" ? own : { ...own, modes: own.modes.map(() => state.coordinates), ends: false };
}

function steps(state, extent) {
  const { modes, spacing, by, reference, ends } = measured(state);
  const whole = reference === "trained" ? state.trained : reference;
  const lengths = (by === "reference" ? whole : extent).map((n, a) => n * spacing[a]);
  const shared = lengths.filter((_, a) => modes[a] !== "index" && modes[a] !== "signed");
  const of = a => by === "shortest" ? Math.min(...shared) : by === "longest" ? Math.max(...shared) : lengths[a];
  return modes.map((mode, a) => {
    const step = { index: 1, signed: 1, reference: whole ? whole[a] / extent[a] : 1, centred: 2 / of(a), unit: 1 / of(a) }[mode];
    return step * spacing[a] * (ends ? extent[a] / Math.max(1, extent[a] - 1) : 1);
  });
}

// ---- both together

function ruleOf(state) {  // [name, options] or null
  if (state.scaling === "none") return null;
  if (state.scaling !== "own") return [state.scaling, state.options];
  return Object.entries(variantOf(state).own)[0];
}

function scaled(v, state) {
  const rule = ruleOf(state);
  if (!rule) return v;
  const [name, options] = rule, step = steps(state, state.trained);
  const stretch = state.tested.map((n, a) => options.factor ?? Math.max(1, n / state.trained[a]));
  const along = state.along === "all" ? stretch : stretch.map((s, a) => a === +state.along ? s : 1);
  const changed = RULES[name](v, along, state.trained.map((n, a) => n * step[a]), options);
  return state.along === "all" ? changed : each(v, (h, p, a, i) => a === +state.along ? changed.w[i] : v.w[i]);
}

function perToken(v, step) {
  return each(v, (h, p, a, i) => v.w[i] * step[a]);
}

// Everything that the pictures show: vectors per token, in training, and on the tested grid without scaling and with it.
function compute(state) {
  const plain = vectors(state), small = steps(state, state.trained), large = steps(state, state.tested), rule = ruleOf(state);
  const kept = large.map((step, a) => Math.max(step, small[a]));  // a rule does the stretching, not the coordinates
  return { trained: perToken(plain, small), before: perToken(plain, large), after: rule ? perToken(scaled(plain, state), kept) : null };
}
