// Charts: accuracy against size, and costs.

function value(p) {
  if (!p) return "–";
  if (p.std !== null) return percent(p.mean) + " ± " + percent(p.std);
  return percent(p.mean) + (p.low !== null && p.high !== null ? " (" + percent(p.low) + " to " + percent(p.high) + ")" : "");
}

// Which labels of a row fit beside one another; the last one always does.
function fitting(places, wide) {
  const kept = [], fits = (k, after) => after === undefined || places[k] - places[after] >= (wide[k] + wide[after]) / 2 + 9;
  places.forEach((_, k) => { if (fits(k, kept.at(-1))) kept.push(k); });
  const last = places.length - 1;
  while (kept.at(-1) !== last) {
    if (kept.length > 1 && !fits(last, kept.at(-1))) kept.pop();
    else if (fits(last, kept.at(-1))) kept.push(last);
    else kept.splice(0, 1, last);
  }
  return kept;
}

// With more lines than CROWD the key scrolls, from the highest line on, and bands are shown of the encoding that is pointed at;
// with more than THRONG marks are left at the chosen size alone.
const CROWD = 16, THRONG = 100;

// `places`: { at, ticks: [above, below], label }, from left to right. `lines()`: { curve, name, points, texts }, a point a place or null.
// `greys`: { name, pattern, values, texts, across: from edge to edge }. `scale(lines)`: { low, high, log, marks: [[value, text]] }.
function chart(holder, { title, what, caption, label, places, lines, greys, scale }) {
  const state = { index: places.length - 1 }, left = 58, right = 14, top = 12, bottom = 44, height = 300;
  const picture = svg("svg", { class: "chart", tabindex: 0, role: "slider", "aria-label": label + ". Arrow keys choose the size to read.", "aria-valuemin": 1, "aria-valuemax": places.length });
  const key = el("table", { class: "key" }), keys = el("div", { class: "keys" }, key);
  const section = holder.appendChild(el("section", {}, el("h3", {}, title), el("div", { class: "soft" }, what), picture, keys));
  const span = (places.at(-1).at - places[0].at) || 1;
  let width = 0, range = null;
  const x = k => left + 8 + (width - left - right - 16) * (places.length === 1 ? .5 : (places[k].at - places[0].at) / span);
  const share = v => range.log ? Math.log(v / range.low) / Math.log(range.high / range.low) : (v - range.low) / (range.high - range.low);
  const y = v => top + (height - top - bottom) * (1 - share(v));

  function axes() {
    const marks = range.marks.flatMap(([v, text]) => [svg("path", { d: `M${left} ${y(v)}H${width - right}`, style: "stroke:var(--rule)" }),
      svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, text)]);
    const wide = places.map(({ ticks }) => 7.4 * Math.max(...ticks.map(text => text.length)));
    for (const k of fitting(places.map((_, k) => x(k)), wide)) places[k].ticks.forEach((text, line) => {  // the last may be wider than the margin
      marks.push(svg("text", { x: Math.min(x(k), width - 2 - 4.2 * text.length), y: height - bottom + 18 + 16 * line, "text-anchor": "middle" }, text));
    });
    for (const { pattern, values, across } of greys) {
      const points = values.flatMap((v, k) => v === null ? [] : [[x(k), y(v)]]);
      if (across) points.unshift([left, points[0][1]]), points.push([width - right, points[0][1]]);
      marks.push(greyLine(points.length ? outline(points) : "", pattern));
    }
    return marks;
  }
  function drawn({ curve, points }, marked) {
    const of = node => { node.dataset.of = curve.encoding; return node; };
    const some = points.flatMap((p, k) => p ? [[k, p]] : []), banded = some.filter(([, p]) => p.low !== null && p.high !== null);
    const band = [...banded.map(([k, p]) => [x(k), y(p.high)]), ...banded.reverse().map(([k, p]) => [x(k), y(p.low)])];
    return { band: band.length ? [of(svg("path", { class: "band", d: outline(band) + "Z", style: "fill:" + colour(curve.encoding) }))] : [],
      line: some.length ? [of(fill(lineOf(curve, outline(some.map(([k, p]) => [x(k), y(p.mean)]))), { class: "line" }, []))] : [],
      dots: some.filter(([k]) => marked || k === state.index).map(([k, p]) => of(dot(curve, x(k), y(p.mean), k === state.index ? 1.35 : .9))) };
  }
  function keyRow({ curve, name, mark, texts }) {
    const row = el("tr", {}, el("td", {}, mark ?? swatch(curve)), el("td", {}, name), el("td", { class: "number" }, texts[state.index]));
    if (!curve) return row;
    row.addEventListener("click", event => { if (event.pointerType !== "mouse") stress(stressed === curve.encoding ? null : curve.encoding); });
    return stressing(row, curve.encoding);
  }
  measures.push(() => { width = Math.max(280, Math.round(section.clientWidth)); });
  function draw() {
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const list = lines(), place = places[state.index];
    range = scale(list);
    const all = list.map(line => drawn(line, list.length <= THRONG)), hair = svg("path", { d: `M${x(state.index)} ${top}V${height - bottom}`, style: "stroke:var(--control)" });
    picture.replaceChildren(...axes(), hair, ...all.flatMap(d => d.band), ...all.flatMap(d => d.line), ...all.flatMap(d => d.dots));
    const crowded = list.length > CROWD, of = p => p === null ? -1 : p.mean;
    const sorted = crowded ? [...list].sort((a, b) => of(b.points[state.index]) - of(a.points[state.index])) : list;
    const entries = [...sorted, ...greys.map(g => ({ ...g, mark: greySwatch(g.pattern) }))];
    key.replaceChildren(el("caption", {}, caption + place.label + (crowded ? ", highest first" : "")), el("tbody", {}, ...entries.map(keyRow)));
    section.classList.toggle("crowded", crowded);
    for (const [name, text] of Object.entries({ tabindex: 0, role: "region", "aria-label": "Key of: " + title })) crowded ? keys.setAttribute(name, text) : keys.removeAttribute(name);
    picture.setAttribute("aria-valuenow", state.index + 1);
    picture.setAttribute("aria-valuetext", place.label + ": " + entries.map(({ name, texts }) => name + " " + texts[state.index]).join("; "));
  }
  function move(index) {
    const next = Math.min(places.length - 1, Math.max(0, index));
    if (next !== state.index) { state.index = next; draw(); stress(stressed); }
  }
  function point(event) {
    const box = picture.getBoundingClientRect(), where = (event.clientX - box.left) * width / box.width;
    move(places.map((_, k) => Math.abs(x(k) - where)).reduce((best, d, k, all) => d < all[best] ? k : best, 0));
  }
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerdown", point);
  picture.addEventListener("keydown", event => {
    const to = { ArrowLeft: state.index - 1, ArrowDown: state.index - 1, ArrowRight: state.index + 1, ArrowUp: state.index + 1, Home: 0, End: places.length - 1 }[event.key];
    if (to !== undefined) { event.preventDefault(); move(to); }
  });
  return draw;
}

function accuracyChart(test, holder) {
  const at = test.columns.flatMap((size, i) => size.drawn ? [i] : []), title = test.test[0].toUpperCase() + test.test.slice(1);
  const places = at.map((i, k) => {
    const { ratio, tick, unit, label } = test.columns[i];
    return { at: Math.log2(ratio), label, ticks: ["×" + +ratio.toPrecision(3), tick + (k === 0 && unit !== "voxels" ? " " + unit : "")] };
  });
  const grey = (name, pattern, values, across) => ({ name, pattern, values, across, texts: values.map(v => v === null ? "–" : percent(v)) });
  const greys = [test.upper && grey("upper bound: the true crop", "none", at.map(i => test.upper[i]), false), test.chance !== null && grey("chance", "2 3", at.map(() => test.chance), true)].filter(Boolean);
  const marks = [0, .2, .4, .6, .8, 1].map(v => [v, v === 1 ? "100 %" : String(Math.round(100 * v))]);
  const lines = () => shown(test).map(c => ({ curve: c, name: full(c) + bestNote(c), points: at.map(i => c.points[i]), texts: at.map(i => value(c.points[i])) }));
  return chart(holder, { title, what: test.what, caption: "Accuracy in % at ", label: title + ": accuracy against size", places, lines, greys, scale: () => ({ low: 0, high: 1, log: false, marks }) });
}

const capital = text => text[0].toUpperCase() + text.slice(1);
const costLines = cost => cost.curves.filter(c => isOn(c.encoding));
function costChart(cost, holder) {
  const places = cost.columns.map(({ label, ticks }, at) => ({ at, label, ticks }));
  const lines = () => costLines(cost).map(c => ({ curve: { ...c, plain: true }, name: c.encoding, points: c.points, texts: c.points.map(p => p ? p.text : "–") }));
  function scale(list) {  // logarithmic, but from zero on where all are alike
    const every = list.flatMap(line => line.points).filter(Boolean);
    if (!every.length) return { low: 0, high: 1, log: false, marks: [] };
    const high = Math.max(...every.map(p => p.high)) || 1, low = Math.min(...every.map(p => p.low));
    const range = low > 0 && high / low > 4 ? { low: low / 1.3, high: high * 1.3, log: true } : { low: 0, high: high * 1.1, log: false };
    return { ...range, marks: roundMarks(range).map(v => [v, v.toLocaleString("en", { maximumSignificantDigits: 3 })]) };
  }
  const what = cost.unit + ", by size of an input, from small to large; not to scale";
  return chart(holder, { title: capital(cost.name), what, caption: capital(cost.unit) + " at ", label: `${capital(cost.name)}: ${cost.unit} against size`, places, lines, greys: [], scale });
}
