// Canvases: size, ink, axes of a chart, marks.

const $ = id => document.getElementById(id);
const RAMP = [[13, 27, 62], [24, 74, 140], [42, 125, 158], [104, 175, 140], [196, 212, 112], [255, 240, 165]];
const FONT = "12px system-ui, sans-serif";

let inks = new Map();
function ink(name) {  // a colour of the style sheet, as it is in the theme at hand
  if (!inks.has(name)) {
    $("probe").style.color = `var(--${name})`;
    inks.set(name, getComputedStyle($("probe")).color);
  }
  return inks.get(name);
}
const AXIS_INKS = ["accent", "second", "third", "fourth"];
const axisInk = a => ink(AXIS_INKS[a]);

const SHADES = Array.from({ length: 256 }, (_, k) => {
  const place = k / 255 * (RAMP.length - 1), i = Math.min(RAMP.length - 2, Math.floor(place));
  return RAMP[i].map((low, c) => Math.round(low + (RAMP[i + 1][c] - low) * (place - i)));
});
const shade = share => SHADES[Math.round(255 * Math.min(1, Math.max(0, share)))];

// A context in CSS pixels on an emptied canvas of that height
function sheet(canvas, height) {
  const width = Math.max(200, canvas.parentElement.clientWidth), dense = Math.max(1, devicePixelRatio || 1);
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.font = FONT;
  return { pen, width, height };
}

function stroke(pen, points, colour, { dash = [], wide = 1.8 } = {}) {
  pen.strokeStyle = colour;
  pen.lineWidth = wide;
  pen.lineJoin = "round";
  pen.setLineDash(dash);
  pen.beginPath();
  points.forEach(([x, y], i) => i ? pen.lineTo(x, y) : pen.moveTo(x, y));
  pen.stroke();
  pen.setLineDash([]);
}

function dot(pen, x, y, radius, colour, filled = true) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fillStyle = filled ? colour : ink("page");
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.fill();
  pen.stroke();
}

function say(pen, text, x, y, { align = "left", colour = ink("soft"), base = "middle" } = {}) {
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.textBaseline = base;
  pen.fillText(text, x, y);
}

// round numbers from low to high, about so many
function ticks(low, high, about = 5) {
  const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough * .99);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(n * step);
  return found;
}

function short(value) {  // three digits, or all before the point
  if (value === 0) return "0";
  const large = Math.abs(value);
  return large >= 1e5 || large < 1e-3 ? value.toExponential(0) : String(large >= 1000 ? Math.round(value) : +value.toPrecision(3));
}

// powers of ten, or of two where there are few
function powers(low, high, base = 10) {
  const found = [];
  for (let n = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); base ** n <= high * (1 + 1e-9); n++) found.push(base ** n);
  return found.length < 3 && base > 2 ? powers(low, high, 2) : found;
}

// The frame of a chart: grid, labels, and where values lie. `x`, `y`: { low, high, log, ticks, label }
function frame(canvas, height, x, y) {
  const { pen, width } = sheet(canvas, height), left = 52, right = 26, top = 12, bottom = 38;
  const share = (axis, v) => axis.log ? Math.log(v / axis.low) / Math.log(axis.high / axis.low) : (v - axis.low) / ((axis.high - axis.low) || 1);
  const px = v => left + (width - left - right) * share(x, v), py = v => height - bottom - (height - top - bottom) * share(y, v);
  for (const v of y.ticks ?? ticks(y.low, y.high)) {
    stroke(pen, [[left, py(v)], [width - right, py(v)]], ink("rule"), { wide: 1 });
    say(pen, short(v), left - 6, py(v), { align: "right" });
  }
  for (const v of x.ticks ?? ticks(x.low, x.high, width < 380 ? 4 : 7)) say(pen, short(v), px(v), height - bottom + 13, { align: "center" });
  say(pen, x.label, (left + width - right) / 2, height - 8, { align: "center" });
  return { pen, px, py, left, right: width - right, top, bottom: height - bottom, width };
}

// ---- nodes

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function fillTable(table, head, lines) {
  table.replaceChildren(el("thead", {}, el("tr", {}, ...head.map(text => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...lines.map(line => el("tr", {}, ...line.map(text => el("td", {}, text))))));
}
