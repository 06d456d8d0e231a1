// What is drawn once, the colours, printing, and the start.

function claims() {
  for (const run of DATA.runs) {
    if (DATA.runs.length > 1) $("claims").append(el("h2", {}, run.name));
    const sides = [].concat(run.train_size ?? []), clips = run.train_kind === "clips", unit = sides.length < 3 || clips ? "px" : "voxels";
    const size = sides.length ? "trained at " + (clips ? sides[0] + " frames of " + sides.slice(1).join("×") : sides.join("×")) + " " + unit : null;
    const many = run.chance ? Math.round(1 / run.chance) + " classes" : null;
    for (const paragraph of String(run.claim ?? "").trim().split(/\n\s*\n/)) {
      const set = /^(\s|[-*|])/m.test(paragraph);  // indented lines, lists and tables keep their line breaks
      $("claims").append(set ? el("pre", {}, paragraph.replace(/^ {4}/gm, "")) : el("p", {}, paragraph.replaceAll("\n", " ")));
    }
    $("claims").append(el("p", { class: "soft" }, [run.recipe && "recipe " + run.recipe, size, many].filter(Boolean).join(" · ")));
  }
}

function costs() {
  if (!DATA.costs.length) return;
  const charts = el("div", { class: "charts" }), tables = el("div");
  $("costs").append(el("h2", {}, "Speed and memory"), el("p", { class: "soft" }, "Of models without scaling. Mean ± sample standard deviation over the measurements of all seeds and tests at that size; bands: from the lowest to the highest."), charts, tables);
  parts.push(...DATA.costs.map(cost => costChart(cost, charts)), ...DATA.costs.map(cost => costTable(cost, tables)));
}

function training() {
  if (!DATA.trained.length) return;
  $("training").append(el("h2", {}, "Training"));
  trainingTable($("training"));
}

const written = value => JSON.stringify(value, null, 2).replace(/\[\n\s+([^[\]{}]*?)\n\s+\]/g, (_, list) => "[" + list.replace(/,\n\s+/g, ", ") + "]");

function time(seconds) {
  const minutes = Math.round(seconds / 60);
  return seconds < 90 ? number(seconds) + " s" : minutes < 90 ? minutes + " min" : Math.floor(minutes / 60) + " h " + minutes % 60 + " min";
}

function runs() {
  for (const run of DATA.runs) {
    const machine = Object.entries(run.machine ?? {}).map(([name, value]) => [name, number(value)]);
    const facts = [["command", run.command && el("code", {}, run.command)], ["commit", run.commit && run.commit + (run.dirty ? " with uncommitted changes" : "")], ["seeds", run.seeds && [].concat(run.seeds).join(", ")],
      ["time", typeof run.seconds === "number" ? time(run.seconds) : null], ...machine];
    const list = facts.filter(([, v]) => v).flatMap(([name, v]) => [el("dt", {}, name), el("dd", {}, v)]);
    $("runs").append(el("h3", {}, run.name), el("dl", {}, ...list), el("details", {}, el("summary", {}, "Whole configuration"), el("pre", { class: "config" }, written(run))));
  }
}

function samples() {
  if (!DATA.samples.length) return;
  const deep = { clips: "Of each clip four frames, the first to the last.", volumes: "Of each volume four slices, evenly apart." };
  const told = [...new Set(DATA.runs.map(run => deep[run.train_kind]))].filter(Boolean).join(" ");
  const sizes = DATA.tests.filter(t => t.test !== "sequence").map(t => `${t.test} ${t.columns.map(size => size.label).join(", ")}`).join("; ");
  const strip = (src, i) => el("div", { class: "strip", tabindex: 0, role: "region", "aria-label": "Samples, run " + (i + 1) }, el("img", { class: "samples", src, alt: "One test input at each size: " + sizes }));
  $("samples").append(el("h2", {}, "Samples"), told && el("p", { class: "soft" }, told), ...DATA.samples.map(strip));
}

function rows() {
  const button = download("rows.csv", () => [DATA.columns, ...unpacked(DATA.rows)]);
  $("rows").append(el("div", { class: "bar" }, el("span", { class: "soft" }, number(DATA.rows.count) + " rows"), button));
  $("rows").addEventListener("toggle", () => { if (!$("rows").querySelector("table")) rowTable($("rows")); });
}

// ---- colours and printing

const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  $("theme").textContent = dark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `${dark() ? "Light" : "Dark"} colours`);
}

let opened = [];
function beforePrint() {  // what is folded is printed too
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const node of opened) node.open = true;
  if (!$("rows").querySelector("table")) rowTable($("rows"));
}
function afterPrint() {
  for (const node of opened) node.open = false;
}

claims(); controls(); training(); runs(); samples(); rows();
$("note").textContent = DATA.note;
parts.push(...DATA.tests.filter(t => t.test !== "sequence").map(t => accuracyChart(t, $("charts"))), ...DATA.tests.map(t => accuracyTable(t, $("tables"))));
costs();
update();
theme();
$("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
addEventListener("beforeprint", beforePrint);
addEventListener("afterprint", afterPrint);
new ResizeObserver(update).observe($("charts"));
