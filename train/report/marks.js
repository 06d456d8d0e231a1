// Numbers as text, nodes, and the marks of a curve.

const $ = id => document.getElementById(id);
const NS = $("root").namespaceURI;
const PATHS = { o: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", s: "M-3.6-3.6h7.2v7.2h-7.2Z", "^": "M0-4.6L4.4 3.4H-4.4Z", D: "M0-4.8L4.8 0L0 4.8L-4.8 0Z", v: "M0 4.6L4.4-3.4H-4.4Z",
  P: "M-1.5-4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9Z", X: "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0Z", h: "M0-4.6L4-2.3V2.3L0 4.6L-4 2.3V-2.3Z" };
const DASHES = ["7 4", "2 3", "10 3 2 3", "4 2", "12 4", "6 2 2 2 2 2"];

function percent(share) {  // a tie goes to the even digit, as in table.md
  const x = 100 * share;
  return (x % .5 === .25 ? 2 * Math.round(5 * x) / 10 : x).toFixed(1);
}
const number = x => typeof x === "number" ? x.toLocaleString("en", { maximumFractionDigits: 2 }) : String(x ?? "");

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) name.startsWith("on") ? node.addEventListener(name.slice(2), value) : node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(NS, tag), attributes, children);

const names = Object.keys(DATA.looks);
names.forEach((name, i) => document.documentElement.style.setProperty("--s" + i, "light-dark(" + DATA.looks[name][0].join(", ") + ")"));
const colour = name => "var(--s" + names.indexOf(name) + ")";
const outline = points => "M" + points.map(p => p.map(v => v.toFixed(1)).join(" ")).join("L");

function lineOf(c, d) {
  return svg("path", { d, fill: "none", "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dash(c), style: "stroke:" + colour(c.encoding) });
}
function greyLine(d, pattern) {
  return svg("path", { d, fill: "none", "stroke-width": 1.4, "stroke-dasharray": pattern, style: "stroke:var(--grey)" });
}
function dot(c, x, y, scale = 1) {
  const style = "stroke:" + colour(c.encoding) + ";fill:" + (c.plain ? colour(c.encoding) : "var(--page)");
  return svg("path", { d: PATHS[DATA.looks[c.encoding][1]], transform: `translate(${x} ${y}) scale(${scale})`, "stroke-width": 1.4, style });
}
const sample = (...marks) => svg("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" }, ...marks);
const swatch = c => sample(lineOf(c, "M0 7H34"), dot(c, 17, 7));
const greySwatch = pattern => sample(greyLine("M0 7H34", pattern));

// Marks of an axis: powers of ten with what lies between where there are few; from zero on in round steps.
function roundMarks({ low, high, log }) {
  const power = 10 ** Math.floor(Math.log10(log ? low : high)), found = [];
  if (!log) {
    const step = [.1, .2, .5, 1, 2].map(n => n * power).find(n => high / n <= 6);
    for (let n = 0; n * step <= high; n++) found.push(n * step);
    return found;
  }
  const within = Math.log10(high / low) > 2.5 ? [1] : [1, 2, 5];
  for (let at = power; at <= high; at *= 10) found.push(...within.map(n => n * at));
  return found.filter(v => v >= low && v <= high);
}
