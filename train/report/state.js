// What is shown: the controls, the curves they choose, the address that holds them.

const scalings = [...new Set(DATA.tests.flatMap(t => t.curves.map(c => c.scaling)))];
const temperatures = [...new Set(DATA.tests.flatMap(t => t.curves.map(c => c.temperature)))];
const hows = [...new Set(DATA.tests.flatMap(t => t.curves.filter(c => !c.plain).map(c => c.how)))];
const boxes = () => [...document.querySelectorAll("#encodings input")];
let on = new Set();  // encodings that are switched on
const isOn = name => on.has(name);

function shown(test) {
  const mode = $("scaling").value, t = $("temperature").value;
  const base = c => t === "any" ? c.plain : c.scaling === "none";
  const wanted = { both: c => base(c) || t in c.best, plain: base, best: c => t in c.best, all: () => true };
  return test.curves.filter(c => isOn(c.encoding) && (t === "any" || c.temperature === t) && (wanted[mode] ?? (c => "=" + c.scaling === mode))(c));
}
const bestNote = c => $("temperature").value in c.best ? " (best at ×" + +c.best[$("temperature").value].toPrecision(3) + ")" : "";
const full = c => c.encoding + (c.plain ? "" : ", " + c.how);
// With every scaling shown at once each has a pattern of its own.
const dash = c => c.plain ? "none" : $("scaling").value === "all" ? DASHES[hows.indexOf(c.how) % DASHES.length] : DASHES[0];

const measures = [], parts = [];  // what asks how wide each chart may be, all before any draws; what draws each chart and table again
function update() {
  on = new Set(boxes().filter(box => box.checked).map(box => box.value));
  for (const measure of measures) measure();
  for (const draw of parts) draw();
  stress(stressed);
}

// The curves of one encoding stand out while a mouse is over its name or the keyboard is on it, and after a tap in the key.
let stressed = null;
function stress(name) {
  stressed = name;
  document.documentElement.classList.toggle("dim", name !== null && isOn(name));
  for (const node of document.querySelectorAll("[data-of]")) node.classList.toggle("on", node.dataset.of === name);
}
function stressing(node, name) {
  node.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") stress(name); });
  node.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") stress(null); });
  node.addEventListener("focusin", event => { if (event.target.matches(":focus-visible")) stress(name); });
  node.addEventListener("focusout", () => stress(null));
  return node;
}

// ---- the address: #off=axial&off=mixed&scaling=all&temperature=log

let usual = {};
function toLink() {
  const said = new URLSearchParams(boxes().filter(box => !box.checked).map(box => ["off", box.value]));
  for (const id of ["scaling", "temperature"]) if ($(id).value !== usual[id]) said.set(id, $(id).value);
  return "#" + said;
}

// Sets the controls; what cannot be read is named
function fromLink(link) {
  const given = new URLSearchParams(link.replace(/^#/, "")), off = given.getAll("off");
  const notes = off.filter(name => !names.includes(name)).map(name => `off=${name}: there is no such encoding here`);
  for (const box of boxes()) box.checked = !off.includes(box.value);
  for (const id of ["scaling", "temperature"]) {
    const value = given.get(id) ?? usual[id], known = [...$(id).options].map(option => option.value);
    if (known.includes(value)) $(id).value = value;
    else notes.push(`${id}=${value} is not one of ${known.join(", ")}: ${usual[id]} is shown`);
  }
  $("told").textContent = notes.join(". ");
}

let linking;
function changed() {
  update();
  clearTimeout(linking);  // browsers refuse many changes of the address in a short time
  linking = setTimeout(() => history.replaceState(null, "", toLink()), 200);
}

function controls() {
  for (const name of names) {
    const mark = sample(dot({ encoding: name, plain: true }, 17, 7, 1.2));
    mark.style.width = "20px";
    mark.setAttribute("viewBox", "7 0 20 14");
    $("encodings").append(stressing(el("label", {}, el("input", { type: "checkbox", value: name, checked: "", autocomplete: "off" }), mark, name), name));
  }
  const all = on => () => { for (const box of boxes()) box.checked = on; changed(); };
  if (names.length > 2) $("encodings").append(el("span", { class: "pair" }, el("button", { type: "button", onclick: all(true) }, "All"), el("button", { type: "button", onclick: all(false) }, "None")));
  const modes = hows.length ? [["both", "none and best"], ["plain", "none"], ["best", "best of each"], ["all", "every scaling"]] : [["plain", "none"]];
  const options = [...modes, ...scalings.filter(s => s !== "none").map(s => ["=" + s, s])];
  $("scaling").append(...options.map(([value, text]) => el("option", { value }, text)));
  $("temperature").append(...["any", ...temperatures].map(t => el("option", { value: t }, t)));
  usual = { scaling: options[0][0], temperature: "any" };
  $("controls").addEventListener("change", changed);
  $("controls").addEventListener("submit", event => event.preventDefault());
  fromLink(location.hash);
  addEventListener("hashchange", () => { fromLink(location.hash); update(); });
}
