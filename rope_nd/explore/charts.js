// The pictures: maps of the kernel, its decay, wave vectors and turns.

const fixed = value => (Math.abs(value) < 5e-4 ? 0 : value).toFixed(3).replace("-", "−");
const signed = n => n > 0 ? "+" + n : n < 0 ? "−" + -n : "0";
const places = (state, offset) => offset.map((d, a) => `${letters(state)[a]} ${signed(d)}`).join(", ");

// ---- maps

// Where offsets lie on a map: cells are square unless one side is more than three times the other
function mapPlaces(view, width) {
  const across = 2 * view.rx + 1, down = 2 * view.ry + 1, left = view.y === null ? 0 : 30, bottom = 34;
  const ratio = view.y === null ? 0 : Math.min(1.4, Math.max(1 / 3, down / across));
  const inner = width - left - 12, tall = view.y === null ? 46 : inner * ratio;
  return { left, top: 2, inner, tall, height: tall + bottom + 2, cx: j => left + (j + view.rx + .5) * inner / across, cy: i => 2 + (i + view.ry + .5) * tall / down,
    cw: inner / across, ch: tall / down };
}

function drawMap(canvas, values, view, state, [low, high], marks, cursor) {
  const at = mapPlaces(view, Math.max(200, canvas.parentElement.clientWidth)), { pen } = sheet(canvas, at.height);
  const across = 2 * view.rx + 1, down = 2 * view.ry + 1, picture = new ImageData(across, down);
  for (let k = 0, i = 0; k < values.length; k++) {
    const [red, green, blue] = shade((values[k] - low) / (high - low || 1));
    picture.data[i++] = red; picture.data[i++] = green; picture.data[i++] = blue; picture.data[i++] = 255;
  }
  const small = Object.assign(document.createElement("canvas"), { width: across, height: down });
  small.getContext("2d").putImageData(picture, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, at.left, at.top, at.inner, at.tall);
  const ry = view.y === null ? 0 : state.trained[view.y] - 1, rx = state.trained[view.x] - 1;
  if (rx < view.rx || ry < view.ry) {  // the offsets of training
    const w = Math.min(rx, view.rx) * 2 + 1, h = Math.min(ry, view.ry) * 2 + 1;
    const box = [at.cx(0) - w * at.cw / 2, at.cy(0) - h * at.ch / 2, w * at.cw, h * at.ch];
    pen.lineWidth = 3; pen.strokeStyle = "#000"; pen.strokeRect(...box);
    pen.lineWidth = 1.2; pen.strokeStyle = "#fff"; pen.strokeRect(...box);
  }
  for (const { offset } of marks) {
    const i = view.y === null ? 0 : offset[view.y], j = offset[view.x];
    const shown = offset.every((d, a) => a === view.x || a === view.y || d === 0) && view.held.every((d, a) => d === 0 || a === view.x || a === view.y);
    if (shown && Math.abs(i) <= view.ry && Math.abs(j) <= view.rx) for (const sign of [1, -1]) ring(pen, at.cx(sign * j), at.cy(sign * i), 7);
  }
  cross(pen, at.cx(cursor[1]), at.cy(cursor[0]));
  for (const v of ticks(-view.rx, view.rx, 6)) if (Number.isInteger(v)) say(pen, signed(v), at.cx(v), at.top + at.tall + 11, { align: "center" });
  say(pen, "offset " + letters(state)[view.x] + ", tokens", at.left + at.inner / 2, at.height - 7, { align: "center" });
  if (view.y === null) return;
  for (const v of ticks(-view.ry, view.ry, 6)) if (Number.isInteger(v) && v !== 0) say(pen, signed(v), at.left - 4, at.cy(v), { align: "right" });
  say(pen, letters(state)[view.y], at.left - 4, at.cy(0), { align: "right", colour: ink("text") });
}

function ring(pen, x, y, radius) {
  for (const [colour, wide] of [["#000", 3.6], ["#fff", 1.8]]) {
    pen.beginPath(); pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.strokeStyle = colour; pen.lineWidth = wide; pen.stroke();
  }
}

function cross(pen, x, y) {
  for (const [colour, wide] of [["#fff", 4], ["#000", 1.6]]) {
    stroke(pen, [[x - 5, y], [x + 5, y]], colour, { wide });
    stroke(pen, [[x, y - 5], [x, y + 5]], colour, { wide });
  }
}

function drawRamp(canvas) {
  const { pen, width } = sheet(canvas, 12), n = 120;
  for (let i = 0; i < n; i++) {
    pen.fillStyle = `rgb(${shade(i / (n - 1)).join(" ")})`;
    pen.fillRect(i * width / n, 0, width / n + 1, 12);
  }
}

// ---- decay

// a curve as points; where there are more than two a pixel, the least and the greatest of each pixel
function curve(f, values, step) {
  const points = [...values].map((v, i) => [f.px(i * step), f.py(v)]), each = Math.ceil(points.length / (f.right - f.left));
  if (each < 3) return points;
  const ends = [];
  for (let i = 0; i < points.length; i += each) {
    const ys = points.slice(i, i + each).map(([, y]) => y);
    ends.push([points[i][0], Math.max(...ys)], [points[i][0], Math.min(...ys)]);
  }
  return ends;
}

// series: [{ values, step, colour, dash, name }], all from distance zero on
function drawLines(canvas, series, { far, low, trained, band, label }) {
  const f = frame(canvas, 260, { low: 0, high: far, label }, { low, high: 1 });
  if (band) {
    const points = [...band.high].map((v, i) => [f.px(i * band.step), f.py(v)]);
    points.push(...[...band.low].map((v, i) => [f.px(i * band.step), f.py(v)]).reverse());
    f.pen.beginPath(); points.forEach(([x, y], i) => i ? f.pen.lineTo(x, y) : f.pen.moveTo(x, y));
    f.pen.globalAlpha = .18; f.pen.fillStyle = ink("accent"); f.pen.fill(); f.pen.globalAlpha = 1;
  }
  for (const distance of trained) if (distance.at > 0 && distance.at < far) {
    stroke(f.pen, [[f.px(distance.at), f.top], [f.px(distance.at), f.bottom]], ink("grey"), { wide: 1, dash: [2, 3] });
  }
  for (const { values, step, colour, dash = [] } of series) stroke(f.pen, curve(f, values, step), colour, { dash });
  const ends = series.filter(s => s.name).map(s => ({ s, x: f.px((s.values.length - 1) * s.step) + 5, y: f.py(s.values.at(-1)) })).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i && end.y - ends[i - 1].y < 13 && Math.abs(end.x - ends[i - 1].x) < 20) end.y = ends[i - 1].y + 13; });
  for (const { s, x, y } of ends) say(f.pen, s.name, Math.min(x, f.width - 14), Math.min(y, f.bottom), { colour: s.colour });
}

// ---- pairs

const sizes = v => Array.from({ length: v.heads * v.pairs }, (_, i) => size(v, Math.floor(i / v.pairs), i % v.pairs));

// the pairs of a head, as rows of numbers, with their place in it
function pairsOf(v, head) {
  const rows = rowsOf(v, head), A = v.axes;
  return Array.from({ length: rows.length / A }, (_, p) => rows.subarray(p * A, (p + 1) * A));
}

// Two axes: points in the plane, the distance from the middle on a logarithmic scale, circles of equal wavelength
function drawPlane(canvas, plain, changed, head, state) {
  const { pen, width } = sheet(canvas, 340), height = 340, cx = width / 2, cy = height / 2, most = Math.min(width, height) / 2 - 26;
  const all = [...pairsOf(plain, head), ...(changed ? pairsOf(changed, head) : [])].map(k => Math.hypot(...k)).filter(Boolean);
  if (!all.length) return say(pen, "no pair turns", cx, cy, { align: "center" });
  const high = Math.max(...all), low = Math.min(...all), span = Math.log(high / low) || 1;
  const radius = speed => most * (.16 + .84 * (high === low ? 1 : Math.log(speed / low) / span));
  for (const wave of powers(2 * Math.PI / high, 2 * Math.PI / low, high / low > 40 ? 4 : 2)) {
    const r = radius(2 * Math.PI / wave);
    pen.beginPath(); pen.arc(cx, cy, r, 0, 2 * Math.PI);
    pen.strokeStyle = ink("rule"); pen.lineWidth = 1; pen.stroke();
    say(pen, short(wave), cx + r * Math.SQRT1_2 + 2, cy - r * Math.SQRT1_2 - 2, { base: "bottom" });
  }
  stroke(pen, [[cx - most - 8, cy], [cx + most + 8, cy]], ink("rule"), { wide: 1 });
  stroke(pen, [[cx, cy - most - 8], [cx, cy + most + 8]], ink("rule"), { wide: 1 });
  say(pen, letters(state)[1], cx + most + 12, cy, { colour: ink("text") });
  say(pen, letters(state)[0], cx, cy + most + 16, { align: "center", colour: ink("text") });
  const place = k => { const n = Math.hypot(...k), r = radius(n); return [cx + r * k[1] / n, cy + r * k[0] / n]; };
  const from = pairsOf(plain, head), to = changed ? pairsOf(changed, head) : null;
  from.forEach((k, p) => {
    if (!Math.hypot(...k)) return;
    if (!to) return dot(pen, ...place(k), 3.2, ink("accent"));
    if (Math.hypot(...to[p])) stroke(pen, [place(k), place(to[p])], ink("grey"), { wide: 1 });
    dot(pen, ...place(k), 3, ink("grey"), false);
    if (Math.hypot(...to[p])) dot(pen, ...place(to[p]), 3.2, ink("accent"));
  });
}

// Other numbers of axes: a row of bars an axis, |k_a| of each pair on a logarithmic scale
function drawBars(canvas, plain, changed, head, state) {
  const own = head === "mean" && plain.heads > 1 ? "0" : head, rows = pairsOf(changed ?? plain, own), before = pairsOf(plain, own), A = plain.axes;
  const strip = A === 1 ? 250 : 300 / A, { pen, width } = sheet(canvas, strip * A + 34), left = 46;
  const all = [...rows, ...before].flatMap(k => [...k].map(Math.abs)).filter(v => v > 1e-12);
  if (!all.length) return say(pen, "no pair turns", width / 2, 60, { align: "center" });
  const high = Math.max(...all), low = Math.max(Math.min(...all), high / 1e7) / 1.5, share = v => Math.max(0, Math.log(v / low) / Math.log(high / low));
  const step = (width - left - 20) / rows.length;
  for (let a = 0; a < A; a++) {
    const floor = 8 + strip * (a + 1) - 10, tall = strip - 18;
    for (const wave of powers(2 * Math.PI / high, 2 * Math.PI / low, 10).filter((_, i, all) => i % Math.ceil(all.length / (strip < 90 ? 2 : 4)) === 0)) {
      const y = floor - tall * share(2 * Math.PI / wave);
      stroke(pen, [[left, y], [width - 20, y]], ink("rule"), { wide: 1 });
      say(pen, short(wave), left - 6, y, { align: "right" });
    }
    stroke(pen, [[left, floor], [width - 20, floor]], ink("control"), { wide: 1 });
    say(pen, letters(state)[a], width - 14, floor - tall / 2, { colour: axisInk(a) });
    rows.forEach((k, p) => {
      const x = left + (p + .5) * step, bar = tall * (k[a] ? share(Math.abs(k[a])) : 0), old = tall * (before[p][a] ? share(Math.abs(before[p][a])) : 0);
      if (bar) stroke(pen, [[x, floor], [x, floor - bar]], axisInk(a), { wide: Math.max(1.5, step * .6) });
      if (changed && old) stroke(pen, [[x - step * .45, floor - old], [x + step * .45, floor - old]], ink("text"), { wide: 1.5 });
    });
  }
  say(pen, "pair", (left + width - 20) / 2, strip * A + 26, { align: "center" });
}

// How often each pair turns over the trained and over the tested extent, by pair, most first
function drawTurns(canvas, list) {
  const seen = list.flatMap(t => [t.trained, t.tested]).filter(Boolean);
  if (!seen.length) return say(sheet(canvas, 260).pen, "no pair turns", 60, 60);
  const high = Math.max(...seen, 2) * 1.2, low = Math.max(Math.min(...seen, .5) / 1.3, high / 1e8);
  const f = frame(canvas, 340, { low: -.5, high: list.length - .5, label: "pairs, most turns first" }, { low, high, log: true, ticks: powers(low, high) });
  stroke(f.pen, [[f.left, f.py(1)], [f.right, f.py(1)]], ink("grey"), { wide: 1.4, dash: [5, 4] });
  const radius = list.length > 80 ? 1.4 : 2.6;
  list.forEach((t, i) => {
    const colour = t.unseen ? ink("second") : ink("accent");
    if (t.trained && t.tested) stroke(f.pen, [[f.px(i), f.py(t.trained)], [f.px(i), f.py(t.tested)]], colour, { wide: 1 });
    if (t.trained) dot(f.pen, f.px(i), f.py(t.trained), radius, ink("grey"), false);
    if (t.tested) dot(f.pen, f.px(i), f.py(t.tested), radius, colour);
  });
  say(f.pen, "one turn", f.right - 2, f.py(1) - 8, { align: "right" });
}
