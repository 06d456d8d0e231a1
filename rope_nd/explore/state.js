// What is chosen: its defaults, its checks, the link that holds it and the code that makes it. Nothing here touches the document.

const STARTS = { 1: [[64], [256]], 2: [[14, 14], [28, 28]], 3: [[8, 14, 14], [16, 28, 28]], 4: [[4, 8, 8, 8], [8, 16, 16, 16]] };
const LARGEST = 16384, REACH = 64;  // tokens an axis; offsets that a map shows at the most
const COORDINATES = ["index", "centred", "unit"];
const FILLED = { truncate: { keep: 0.75, min_turns: null } };  // where the library has no default

const defaultsOf = rule => ({ ...DATA.rules[rule], ...FILLED[rule] });
const letters = state => DATA.axes[state.axes];

// the state that an encoding begins with; `old` keeps what still has a meaning
function begin(encoding, axes, old) {
  const entry = DATA.encodings[encoding], ranks = Object.keys(entry.axes).map(Number);
  const count = ranks.includes(axes) ? axes : ranks.includes(2) ? 2 : ranks[0];
  const variant = entry.axes[count], same = old && old.axes === count;
  const state = { encoding, axes: count, width: old ? old.width : 64, theta: variant.theta, leftover: "even", split: null, coordinates: "own",
    trained: same ? old.trained : variant.trained ?? STARTS[count][0], tested: same ? old.tested : variant.trained?.map(n => 2 * n) ?? STARTS[count][1],
    scaling: "none", options: {}, along: "all", head: "mean", y: count > 1 ? count - 2 : null, x: count - 1, held: new Array(count).fill(0), whole: false };
  if (variant.own) Object.assign(state, { scaling: "own", trained: variant.trained, tested: variant.trained.map(n => 2 * n) });
  else if (old && entry.rules.includes(old.scaling)) Object.assign(state, { scaling: old.scaling, options: old.options, along: same ? old.along : "all" });
  return state;
}

// ---- checks: what is wrong, the value and the mend, or ""

const whole = (n, low, high) => Number.isInteger(n) && n >= low && n <= high;

function problem(state) {
  const variant = variantOf(state), found = variant.at[state.width];
  if (typeof found === "string") return found;
  if (variant.theta !== null && !(state.theta > 0 && Number.isFinite(state.theta))) return `theta=${state.theta}: give one positive number`;
  for (const name of ["trained", "tested"]) for (const [a, n] of state[name].entries()) {
    if (!whole(n, 1, LARGEST)) return `${name} ${letters(state)[a]}=${n}: give a whole number of tokens from 1 to ${LARGEST}`;
  }
  for (const [a, n] of state.held.entries()) if (!whole(n, -LARGEST, LARGEST)) return `offset ${letters(state)[a]}=${n}: give a whole number of tokens`;
  return splitProblem(state) || optionProblem(state);
}

function splitProblem({ leftover, split, axes, width }) {
  if (leftover !== "counts") return "";
  const good = split && split.length === axes && split.every(n => whole(n, 1, width)) && split.reduce((a, b) => a + b) <= width / 2;
  return good ? "" : `split=(${split ?? ""}): give ${axes} counts of at least 1 whose sum is at most ${width / 2} pairs`;
}

function optionProblem({ scaling, options: o }) {
  if (scaling === "yarn" && !(o.slow >= 0 && o.fast > o.slow)) return `slow=${o.slow}, fast=${o.fast}: the ramp needs 0 <= slow < fast, in turns`;
  if (scaling === "llama3" && !(o.low >= 0 && o.high > o.low)) return `low=${o.low}, high=${o.high}: the ramp needs 0 <= low < high, in turns`;
  if (scaling === "dynamic_ntk" && !(o.alpha > 0 && Number.isFinite(o.alpha))) return `alpha=${o.alpha}: give a positive number`;
  if (scaling !== "truncate") return "";
  if (o.keep === null && o.min_turns === null) return "truncate needs keep (a share, as 0.75) or min_turns (turns over the trained extent, as 1)";
  if (o.keep !== null && !(o.keep >= 0 && o.keep <= 1)) return `keep=${o.keep}: give a share between 0 and 1`;
  return o.min_turns !== null && !(o.min_turns >= 0) ? `min_turns=${o.min_turns}: give turns of at least 0` : "";
}

// ---- the link

function toLink(state) {
  const said = { encoding: state.encoding, axes: state.axes, width: state.width, trained: state.trained.join("x"), tested: state.tested.join("x"),
    theta: state.theta, leftover: state.leftover, split: state.split?.join("x"), coordinates: state.coordinates, scaling: state.scaling,
    ...Object.fromEntries(Object.entries(state.options).map(([name, value]) => [name, value ?? "no"])), along: state.along, head: state.head,
    plane: state.y === null ? null : `${state.y}x${state.x}`, held: state.held.some(Boolean) ? state.held.join("x") : null, range: state.whole ? "whole" : null };
  return "#" + new URLSearchParams(Object.entries(said).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
}

// the state of a link, and what in it could not be read
function fromLink(link) {
  const given = new URLSearchParams(link.replace(/^#/, "")), notes = [];
  const pick = (name, values, fallback) => {
    const value = given.get(name);
    if (value === null || values.map(String).includes(value)) return value ?? String(fallback);
    notes.push(`${name}=${value} is not one of ${values.join(", ")}: ${fallback} is shown`);
    return String(fallback);
  };
  const encoding = pick("encoding", Object.keys(DATA.encodings), "axial");
  const ranks = Object.keys(DATA.encodings[encoding].axes);
  const state = begin(encoding, Number(pick("axes", ranks, ranks.includes("2") ? 2 : ranks[0])));
  const list = (name, good) => {
    const value = given.get(name);
    if (value === null) return;
    const numbers = value.split("x").map(Number);
    if (numbers.length === state.axes && numbers.every(good)) state[name] = numbers;
    else notes.push(`${name}=${value} does not fit ${state.axes} axes: ${state[name]?.join("x") ?? "none"} is shown`);
  };
  state.width = Number(pick("width", DATA.widths, 64));
  list("trained", n => whole(n, 1, LARGEST));
  list("tested", n => whole(n, 1, LARGEST));
  list("held", n => whole(n, -LARGEST, LARGEST));
  if (state.theta !== null && given.has("theta")) {
    if (Number(given.get("theta")) > 0) state.theta = Number(given.get("theta"));
    else notes.push(`theta=${given.get("theta")} is not a positive number: ${state.theta} is shown`);
  }
  const axes = letters(state).map((_, a) => a);
  if (encoding === "axial") {
    state.leftover = pick("leftover", ["even", "unrotated", "counts", ...axes], "even");
    list("split", n => whole(n, 1, 64));
  }
  state.coordinates = pick("coordinates", choicesOf(state).coordinates, "own");
  state.scaling = pick("scaling", choicesOf(state).scaling, state.scaling);
  state.options = Object.fromEntries(Object.entries(defaultsOf(state.scaling)).map(([name, value]) => {
    const told = given.get(name);
    return [name, told === "no" ? null : told !== null && told !== "" && Number.isFinite(Number(told)) ? Number(told) : value];
  }));
  state.along = pick("along", ["all", ...axes], "all");
  state.head = pick("head", choicesOf(state).heads, "mean");
  const [y, x] = (given.get("plane") ?? "").split("x").map(Number);
  if (axes.includes(y) && axes.includes(x) && y !== x) Object.assign(state, { y, x });
  state.whole = given.get("range") === "whole";
  const wrong = problem(state);
  return wrong ? { state: begin("axial", 2), notes: [...notes, wrong] } : { state, notes };
}

function choicesOf(state) {
  const entry = DATA.encodings[state.encoding], at = variantOf(state).at[state.width];
  const heads = typeof at === "string" || at[2] === 1 ? ["mean"] : ["mean", ...Array.from({ length: at[2] }, (_, h) => String(h))];
  return { coordinates: entry.preset ? ["own"] : ["own", ...COORDINATES.slice(1)], heads,
    scaling: [...(variantOf(state).own ? ["own"] : []), ...entry.rules] };
}

// what a map shows: its axes, how far it reaches along them, and the offsets of the others
function viewOf(state) {
  const reach = a => Math.min(state.tested[a] - 1, REACH);
  return { y: state.y, x: state.x, ry: state.y === null ? 0 : reach(state.y), rx: reach(state.x), held: state.held };
}

// ---- the code

const tuple = values => `(${values.join(", ")}${values.length === 1 ? "," : ""})`;
const python = value => value === null ? "None" : typeof value === "string" ? `"${value}"` : String(value);
const dict = entries => `{${entries.map(([name, value]) => `"${name}": ${value}`).join(", ")}}`;

function scalingCode(state) {
  if (state.scaling === "own" || (state.scaling === "none" && !variantOf(state).own)) return null;
  const before = DATA.rules[state.scaling] ?? {}, changed = Object.entries(state.options).filter(([name, value]) => value !== before[name]);
  const rule = changed.length ? dict([[state.scaling, dict(changed.map(([name, value]) => [name, python(value)]))]]) : `"${state.scaling}"`;
  return state.along === "all" ? rule : `[${letters(state).map((_, a) => a === +state.along ? rule : "None").join(", ")}]`;
}

function code(state) {
  const entry = DATA.encodings[state.encoding], variant = variantOf(state), scaling = scalingCode(state), said = [];
  const ranks = Object.keys(entry.axes).length, bare = entry.preset && state.axes === 1;  // presets of text: no model of images
  if (bare ? ranks > 1 : state.axes !== 2) said.push(`axes=${state.axes}`);
  if (bare && variant.at[state.width][2] > 1) said.push(`heads=${DATA.heads}`);
  if (variant.theta !== null && !(entry.preset && state.theta === variant.theta)) said.push(`theta=${state.theta}`);
  if (state.leftover === "counts") said.push(`split=${tuple(state.split)}`);
  else if (state.leftover !== "even") said.push(`leftover=${state.leftover === "unrotated" ? '"unrotated"' : state.leftover}`);
  if (state.coordinates !== "own") said.push(`coordinates={"normalize": "${state.coordinates}"}`);
  if (scaling) said.push(`scaling=${scaling}`);
  if (state.axes !== 2 || state.trained.some(n => n !== 14)) said.push(`trained_extent=${tuple(state.trained)}`);
  const told = said.map(text => ", " + text).join("");
  if (bare) return `from rope_nd import RoPE\n\nrope = RoPE.preset("${state.encoding}", head_dim=${state.width}${told})`;
  const model = state.width === 64 ? "" : `, embed_dim=${DATA.heads * state.width}, num_heads=${DATA.heads}`;
  return `import timm\nfrom rope_nd import wrap\n\nmodel = wrap(timm.create_model("vit_small_patch16_224"${model}), "${state.encoding}"${told})`;
}
