// The controls, and what is drawn again when one changes.

const NAMES = { leftover: { even: "even, rest to the first", unrotated: "even, rest not turned", counts: "by hand" },
  coordinates: { own: "as the encoding has them", centred: "centred, −1 to 1", unit: "unit, 0 to 1" },
  scaling: { own: "the preset's own", none: "none", pi: "position interpolation", ntk: "NTK-aware", dynamic_ntk: "dynamic NTK", yarn: "YaRN", llama3: "Llama 3",
    resonance: "resonance", truncate: "truncation (p-RoPE, HoPE)" } };
const start = fromLink(location.hash);
let state = start.state, notes = start.notes, cursor = [0, 0], drawn = null, queued = false, linking;

// ---- controls

function choices(id, values, chosen, name = value => value) {
  const select = $(id);
  select.replaceChildren(...values.map(value => el("option", { value }, String(name(value)))));
  select.value = String(chosen);
  select.disabled = values.length < 2;
}

function numbers(id, entries, change) {  // [[label, value, attributes]] as inputs of their own
  const holder = $(id);
  const key = entries.map(([label]) => label).join();
  if (holder.dataset.key !== key) {
    holder.dataset.key = key;
    holder.replaceChildren(...entries.map(([label, , attributes], i) => {
      const name = `${id}-${i}`, input = el("input", { id: name, type: "number", step: "any", ...attributes });
      input.addEventListener("input", () => change(i, input.value.trim() === "" ? null : Number(input.value)));
      return el("div", {}, el("label", { for: name }, label), input);
    }));
  }
  entries.forEach(([, value], i) => {
    const input = $(`${id}-${i}`);
    if (document.activeElement !== input) input.value = value ?? "";
  });
}

function showControls() {
  const entry = DATA.encodings[state.encoding], variant = variantOf(state), can = choicesOf(state), axes = letters(state), index = axes.map((_, a) => a);
  $("encoding").value = state.encoding;
  choices("axes", Object.keys(entry.axes), state.axes, n => `${n}: ${DATA.axes[n].join(", ")}`);
  choices("width", DATA.widths, state.width);
  $("theta").disabled = variant.theta === null;
  if (document.activeElement !== $("theta")) $("theta").value = state.theta ?? "";
  choices("leftover", ["even", "unrotated", ...index, "counts"], state.leftover, value => NAMES.leftover[value] ?? `even, rest to ${axes[value]}`);
  if (document.activeElement !== $("split")) $("split").value = state.split?.join(" ") ?? "";
  choices("coordinates", can.coordinates, state.coordinates, value => value === "own" ? ownCoordinates(variant) : NAMES.coordinates[value]);
  choices("scaling", can.scaling, state.scaling, value => NAMES.scaling[value]);
  choices("along", ["all", ...index], state.along, value => value === "all" ? "all axes" : `${axes[value]} alone`);
  choices("head", can.heads, state.head, value => value === "mean" ? `mean of ${can.heads.length - 1}` : Number(value) + 1);
  if (state.axes > 1) for (const id of ["y", "x"]) choices(id, index, state[id], a => axes[a]);
  const tokens = { min: 1, max: LARGEST, step: 1 };
  for (const id of ["trained", "tested"]) numbers(id, axes.map((letter, a) => [letter, state[id][a], tokens]), (a, n) => change({ [id]: state[id].with(a, n) }));
  numbers("held", axes.map((letter, a) => [`Offset ${letter}`, state.held[a], { step: 1 }]), (a, n) => change({ held: state.held.with(a, n) }));
  for (const a of index) $(`held-${a}`).parentElement.hidden = a === state.y || a === state.x;
  $("held").hidden = state.axes < 3;
  const given = Object.entries(state.options);
  numbers("options", given.map(([name, value]) => [name.replace("_", " "), value, { min: 0 }]), (i, n) => change({ options: { ...state.options, [given[i][0]]: n } }));
  const shown = { axial: state.encoding === "axial", counts: state.leftover === "counts", scaled: state.scaling !== "none" && state.scaling !== "own", heads: can.heads.length > 1, planes: state.axes > 1 };
  for (const node of document.querySelectorAll("[data-for]")) node.hidden = !shown[node.dataset.for];
}

function ownCoordinates({ coordinates: { modes, spacing, reference, ends } }) {
  const words = { index: "token indices", signed: "token indices around 0", centred: ends ? "from −1 to 1, both met" : "centred, −1 to 1", unit: "unit, 0 to 1",
    reference: "over a grid of " + (reference === "trained" ? "the trained extent" : reference?.join(" × ")) };
  const steps = spacing.some(s => s !== 1) ? ", steps " + spacing.map(s => +s.toPrecision(3)).join(" × ") : "";
  return [...new Set(modes)].map(mode => words[mode]).join("; ") + steps;
}

function change(part) {
  state = { ...state, ...part };
  notes = [];
  showControls();
  draw();
}

function listen() {
  const on = (id, set) => $(id).addEventListener("input", () => set($(id).value));
  on("encoding", name => change(begin(name, state.axes, state)));
  on("axes", n => change(begin(state.encoding, Number(n), state)));
  on("width", n => change({ width: Number(n), head: "mean" }));
  on("theta", text => change({ theta: Number(text) }));
  on("leftover", value => change({ leftover: value, split: value === "counts" ? counts({ ...state, leftover: "even" }) : null }));
  on("split", text => change({ split: text.trim().split(/[\s,x×]+/).map(Number) }));
  on("coordinates", value => change({ coordinates: value }));
  on("scaling", value => change({ scaling: value, options: defaultsOf(value), along: value === "none" || value === "own" ? "all" : state.along }));
  on("along", value => change({ along: value }));
  on("head", value => change({ head: value }));
  on("y", a => change(Number(a) === state.x ? { y: state.x, x: state.y } : { y: Number(a) }));
  on("x", a => change(Number(a) === state.y ? { y: state.x, x: state.y } : { x: Number(a) }));
  $("whole").addEventListener("input", () => change({ whole: $("whole").checked }));
  $("controls").addEventListener("submit", event => event.preventDefault());
  for (const id of ["before", "after"]) {
    $(id).addEventListener("pointermove", event => point(id, event));
    $(id).addEventListener("pointerdown", event => point(id, event));
    $(id).addEventListener("keydown", step);
  }
  $("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
  $("copy").addEventListener("click", () => copy($("code").textContent, "Code copied."));
  $("link").addEventListener("click", () => { setLink(); copy(location.href, "Link copied."); });
  $("numbers").addEventListener("toggle", () => pairTable());
  addEventListener("hashchange", () => { if (location.hash !== toLink(state)) { ({ state, notes } = fromLink(location.hash)); showControls(); draw(); } });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(document.documentElement.dataset.theme));
  let before;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; theme("light"); draw(); });
  addEventListener("afterprint", () => { theme(before); draw(); });
}

const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = dark() ? "Light" : "Dark";
  inks = new Map();
  draw();
}

async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
    $("copied").textContent = done;
  } catch {
    $("copied").textContent = "This browser keeps pages from copying: " + (text === location.href ? "take the address above." : "select the code.");
  }
}

// ---- pictures

function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}

function draw() {
  const wrong = problem(state);
  $("error").textContent = [wrong, ...notes].filter(Boolean).join(" ");
  if (wrong) return;
  const { trained, before, after } = compute(state), view = viewOf(state), now = after ?? before;
  cursor = [Math.max(-view.ry, Math.min(view.ry, cursor[0])), Math.max(-view.rx, Math.min(view.rx, cursor[1]))];
  const maps = { before: plane(before, state.head, view), after: after ? plane(after, state.head, view) : null };
  const through = state.held.some((d, a) => d && a !== state.y && a !== state.x) ? plane(now, state.head, { ...view, held: state.held.map(() => 0) }) : maps.after ?? maps.before;
  const found = returns(now, state.head, view, through, state.tested.map(n => Math.min(n - 1, 2048)));
  drawn = { trained, before, after, now, view, maps, found };
  drawMaps();
  decay();
  pairs();
  words();
  clearTimeout(linking);  // browsers refuse many changes of the address in a short time
  linking = setTimeout(setLink, 200);
}

function setLink() {
  if (!problem(state)) history.replaceState(null, "", toLink(state));
}

function drawMaps() {
  const { maps, view, found } = drawn, values = [maps.before, maps.after].filter(Boolean);
  const low = state.whole ? -1 : values.reduce((least, map) => map.reduce((a, b) => Math.min(a, b), least), 1), range = [low, 1];
  $("after-figure").hidden = !maps.after;
  $("before-title").textContent = maps.after ? "Without scaling" : "Tested grid";
  $("after-title").textContent = "Scaled: " + NAMES.scaling[state.scaling];
  for (const id of ["before", "after"]) if (maps[id]) {
    drawMap($(id), maps[id], view, state, range, id === "after" || !maps.after ? found : [], cursor);
    const axes = view.y === null ? letters(state)[view.x] : `${letters(state)[view.y]} and ${letters(state)[view.x]}`;
    $(id).setAttribute("aria-label", `Score by offset along ${axes}, from ${fixed(Math.min(...maps[id]))} to ${fixed(Math.max(...maps[id]))}. Arrow keys move the offset that is read.`);
  }
  drawRamp($("ramp"));
  $("lowest").textContent = fixed(low);
  $("highest").textContent = "1";
  read();
}

function read() {
  const { maps, view } = drawn, k = (cursor[0] + view.ry) * (2 * view.rx + 1) + cursor[1] + view.rx;
  const offset = state.held.map((d, a) => a === view.y ? cursor[0] : a === view.x ? cursor[1] : d);
  const told = maps.after ? `${fixed(maps.after[k])} scaled, ${fixed(maps.before[k])} without` : fixed(maps.before[k]);
  const clipped = [view.y, view.x].some(a => a !== null && state.tested[a] - 1 > REACH);
  $("readout").textContent = `At offset ${places(state, offset)}: ${told}. ` + (clipped ? `Offsets beyond ${REACH} are not on the map. ` : "") +
    "Frame: offsets within the trained extent. Rings: returns, below. Point, or use the arrow keys, to read.";
}

function point(id, event) {
  const box = $(id).getBoundingClientRect(), at = mapPlaces(drawn.view, box.width), { view } = drawn;
  const held = (place, cell, reach) => Math.max(-reach, Math.min(reach, Math.round(place / cell)));
  const next = [held(event.clientY - box.top - at.cy(0), at.ch, view.ry), held(event.clientX - box.left - at.cx(0), at.cw, view.rx)];
  if (next[0] !== cursor[0] || next[1] !== cursor[1]) { cursor = next; drawMaps(); }
}

function step(event) {
  const [i, j] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (i === undefined && event.key !== "Home") return;
  event.preventDefault();
  const { ry, rx } = drawn.view;
  cursor = event.key === "Home" ? [0, 0] : [Math.max(-ry, Math.min(ry, cursor[0] + i)), Math.max(-rx, Math.min(rx, cursor[1] + j))];
  drawMaps();
}

function decay() {
  const { before, after, now, view } = drawn, axes = letters(state), unit = a => axes.map((_, b) => +(a === b)), head = state.head;
  const far = Math.max(...state.tested.map(n => n - 1), 1), lines = [], least = values => values.reduce((a, b) => Math.min(a, b), 1);
  axes.forEach((letter, a) => {
    if (state.tested[a] < 2) return;
    if (after) lines.push({ values: line(before, head, unit(a), state.tested[a], 1), step: 1, colour: axisInk(a), dash: [4, 4] });
    lines.push({ values: line(now, head, unit(a), state.tested[a], 1), step: 1, colour: axisInk(a), name: letter });
  });
  const low = Math.min(0, ...lines.map(({ values }) => least(values))), trained = state.trained.map(n => ({ at: n - 1 }));
  drawLines($("lines"), lines, { far, low: Math.floor(low * 10) / 10, trained, label: "distance, tokens" });
  $("lines").setAttribute("aria-label", "Score by distance: " + lines.filter(l => l.name).map(l => `${l.name} ends at ${fixed(l.values.at(-1))}`).join(", "));
  $("decay-note").textContent = (after ? "Solid: scaled; broken: without scaling. " : "") + "Dotted: the trained extents. Band: from the least to the greatest over directions; distances are in tokens.";
  if (state.axes < 2) return;
  const edge = Math.max(1, Math.min(state.tested[view.y], state.tested[view.x]) - 1), n = Math.min(200, 4 * edge + 1), gap = edge / (n - 1);
  const band = around(now, head, view.y, view.x, n, gap), old = after ? around(before, head, view.y, view.x, n, gap) : null;
  const middle = [...(old ? [{ values: old.mean, step: gap, colour: ink("grey"), dash: [4, 4] }] : []), { values: band.mean, step: gap, colour: ink("accent") }];
  $("around-title").textContent = `Over all directions in ${axes[view.y]} and ${axes[view.x]}`;
  drawLines($("around"), middle, { far: edge, low: Math.floor(Math.min(0, least(band.low), old ? least(old.mean) : 0) * 10) / 10, trained: [], band: { ...band, step: gap }, label: "distance, tokens" });
  $("around").setAttribute("aria-label", `Mean score over directions by distance, ending at ${fixed(band.mean.at(-1))}, from ${fixed(band.low.at(-1))} to ${fixed(band.high.at(-1))}`);
}

function turnList() {
  const { trained, now } = drawn, old = pairsOf(trained, state.head), tested = pairsOf(now, state.head), plain = pairsOf(drawn.before, state.head);
  const over = (k, extent) => Math.hypot(...k.map((v, a) => v * extent[a])) / (2 * Math.PI);
  return tested.map((k, i) => {
    const t = { k, plain: plain[i], i, trained: over(old[i], state.trained), tested: over(k, state.tested) };
    return { ...t, unseen: t.trained < 1 && t.tested > t.trained * (1 + 1e-6) };
  });
}

function pairs() {
  const { before, after, now } = drawn, list = turnList(), speeds = sizes(now).filter(Boolean);
  const which = state.head === "mean" && now.heads > 1 && state.axes !== 2 ? ", head 1" : "", mark = state.axes === 2 ? "grey circles" : "lines across";
  $("vectors-title").textContent = `Wave vectors${which}, by wavelength in tokens` + (after ? `; ${mark}: without scaling` : "");
  (state.axes === 2 ? drawPlane : drawBars)($("vectors"), before, after, state.head, state);
  $("vectors").setAttribute("aria-label", `Wave vectors of ${list.length} pairs, in numbers below` + (speeds.length ? `; wavelengths from ${short(2 * Math.PI / Math.max(...speeds))} to ${short(2 * Math.PI / Math.min(...speeds))} tokens` : ""));
  drawTurns($("turns"), [...list].sort((a, b) => b.trained - a.trained));
  drawn.list = list;
  drawn.unseen = list.filter(t => t.unseen).length;
  $("turns").setAttribute("aria-label", `Turns over the trained and tested extent; ${drawn.unseen} of ${list.length} pairs come to angles not seen in training`);
  const swatch = (colour, filled, text) => el("li", {}, el("span", { style: `border-color:var(--${colour})` + (filled ? `;background:var(--${colour})` : "") }), text);
  $("turns-key").replaceChildren(swatch("grey", false, "over the trained extent"), swatch("accent", true, "over the tested extent"),
    swatch("second", true, "tested further than trained, and trained on less than one turn"));
  pairTable();
}

function pairTable() {
  if (!$("numbers").open || !drawn) return;
  const axes = letters(state), perHead = drawn.now.pairs, many = drawn.list.length > perHead, tokens = v => v ? short(2 * Math.PI / Math.abs(v)) : "–";
  fillTable($("table"), ["pair", ...axes.map(letter => `k along ${letter}, rad/token`), ...axes.map(letter => `wavelength ${letter}`), "turns trained", "turns tested"],
    drawn.list.map(t => [(many ? `${Math.floor(t.i / perHead) + 1}.` : "") + (t.i % perHead + 1), ...[...t.k].map(v => v.toPrecision(4).replace("-", "−")), ...[...t.k].map(tokens), t.trained.toPrecision(3), t.tested.toPrecision(3)]));
}

// ---- words

function words() {
  const entry = DATA.encodings[state.encoding], { now, found, list } = drawn, axes = letters(state), waves = wavelengths(now);
  $("about").replaceChildren(el("p", {}, el("strong", {}, state.encoding), ": ", entry.about), ...(entry.source ? [el("p", { class: "soft" }, entry.source)] : []));
  const still = list.filter(t => !t.tested).length, total = list.length, drawnNow = now.heads > 1 ? `, ${now.heads} heads that differ (as the first layer starts, seed 0)` : "";
  const lines = [`${state.width} channels: ${now.pairs} pairs a head${drawnNow}; ${still ? `${still} of ${total} do not turn.` : "all of them turn."}`,
    "Shortest wavelength: " + waves.map((wave, a) => Number.isFinite(wave.shortest) ? `${short(wave.shortest)} tokens along ${axes[a]}` : `none along ${axes[a]}`).join(", ") +
      (waves.some(w => w.short) ? "; under two tokens: " + waves.map((w, a) => w.short ? `${w.short} pairs along ${axes[a]}` : "").filter(Boolean).join(", ") + ", which aliases." : "."),
    `${drawn.unseen || "None"} of ${total} pairs come to angles on the tested grid that training did not show.`,
    ...(drawn.after && measured(state).modes.some(mode => mode !== "index" && mode !== "signed") ?
      ["With a rule the step from token to token stays as trained; without one, these coordinates shrink it as the grid grows."] : []),
    found.length ? `The kernel comes back to ${fixed(found[0].value)} at offset ${places(state, found[0].offset)}.` : "The kernel does not come back within the offsets looked at."];
  $("summary").replaceChildren(...lines.map(text => el("li", {}, text)));
  $("returns").parentElement.hidden = !found.length;
  fillTable($("returns"), ["offset", "kernel", "lowest on the way", ...(drawn.after ? ["without scaling"] : [])],
    found.map(f => [places(state, f.offset), fixed(f.value), fixed(f.lowest), ...(drawn.after ? [fixed(at(drawn.before, state.head, f.offset))] : [])]));
  $("code").textContent = code(state);
  $("code-note").textContent = state.axes === 1 && entry.preset ? "" :
    state.axes === 1 || state.axes === 4 ? "This model takes tokens with coordinates: model.forward_tokens(tokens, coords)." : state.width === 64 ? "" : `Any model with heads of ${state.width} channels will do; this one has ${DATA.heads} of them and no pretrained weights.`;
}

// ---- start

const groups = { Encodings: false, Published: true };
$("encoding").replaceChildren(...Object.entries(groups).map(([label, preset]) => el("optgroup", { label },
  ...Object.keys(DATA.encodings).filter(name => DATA.encodings[name].preset === preset).map(name => el("option", { value: name }, name)))));
$("left-out").replaceChildren(...Object.entries(DATA.left_out).flatMap(([name, why]) => [el("dt", {}, name), el("dd", {}, why)]));
$("version").textContent = `rope_nd ${DATA.version}. Wave vectors come from the library; what this page does with them is tested against it.`;
$("theme").textContent = dark() ? "Light" : "Dark";
$("whole").checked = state.whole;
listen();
showControls();
draw();
