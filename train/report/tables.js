// Tables that sort, and files of them.

function save(name, lines) {
  const quote = cell => /[",\r\n]/.test(cell) ? '"' + cell.replaceAll('"', '""') + '"' : cell;
  const text = lines.map(line => line.map(cell => quote(String(cell ?? ""))).join(",")).join("\r\n") + "\r\n";
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A cell is { text, sort, best }. Clicking a heading sorts: text upwards first, numbers downwards first; empty cells stay last.
function sortable(label, most = Infinity) {
  const head = el("thead"), body = el("tbody"), foot = el("tfoot"), order = { column: null, up: true };
  const table = el("table", {}, el("caption", { class: "hidden" }, label), head, body, foot);
  const box = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
  head.addEventListener("focusin", event => {  // a heading that the keyboard is on is whole, and not behind the first column, which stays
    const cell = event.target.closest("th"), first = head.querySelector("th"), [at, stays, frame] = [cell, first, box].map(node => node.getBoundingClientRect());
    if (cell !== first) box.scrollLeft += Math.min(Math.max(0, at.right - frame.left - box.clientWidth), at.left - stays.right);
  });
  let header = [], lines = [];
  function show() {
    const sorted = [...lines];
    if (order.column !== null) sorted.sort((a, b) => {
      const [one, two] = [a[order.column].sort, b[order.column].sort];
      if (one === null || two === null) return (one === null) - (two === null);
      return (order.up ? 1 : -1) * (typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two)));
    });
    const sorting = j => order.column === j ? { "aria-sort": order.up ? "ascending" : "descending" } : {};
    const numeric = header.map((_, j) => lines.some(line => typeof line[j].sort === "number"));
    head.replaceChildren(el("tr", {}, ...header.map((name, j) => el("th", { scope: "col", class: numeric[j] ? "number" : "", "data-name": name, ...sorting(j) }, el("button", { type: "button", onclick: () => {
      order.up = order.column === j ? !order.up : !numeric[j];
      order.column = j;
      show();
      head.querySelectorAll("button")[j].focus();
    } }, name)))));
    body.replaceChildren(...sorted.slice(0, most).map(line => el("tr", {}, ...line.map((c, j) => el("td", { class: (numeric[j] ? "number" : "") + (c.best ? " best" : "") }, c.text)))));
  }
  return { box, set(newHeader, newLines, feet = []) {
    [header, lines] = [newHeader, newLines];
    foot.replaceChildren(...feet.map(line => el("tr", {}, ...line.map((text, j) => el("td", { class: j > 1 ? "number" : "" }, text)))));
    show();
  }, all() { most = Infinity; show(); } };
}
const plainCell = v => ({ text: number(v), sort: v === "" || v === undefined || v === null ? null : v });

// A heading, what is told beside it, and buttons, over a table
function headed(holder, title, table, ...beside) {
  holder.append(el("div", { class: "bar" }, el("h3", {}, title), ...beside), table.box);
}
const download = (name, lines) => el("button", { type: "button", class: "act", "aria-label": `Download CSV, ${name}`, onclick: () => save(name, lines()) }, "Download CSV");

function accuracyTable(test, holder) {
  const count = el("span", { class: "soft" }), table = sortable(test.test + ": accuracy in %");
  headed(holder, test.test === "sequence" ? "sequence: a plain task in one dimension" : test.test, table, count, download(`table_${test.test}.csv`, spread));
  const labels = test.columns.map(size => size.label);
  const told = temperatures.length > 1 ? line => line : line => line.toSpliced(2, 1);  // one temperature needs no column
  function spread() {
    const line = c => [c.encoding, c.scaling, c.temperature, ...c.points.flatMap(p => p ? [p.mean, p.std, p.low, p.high, p.seeds] : Array(5).fill(""))];
    return [["encoding", "scaling", "temperature", ...labels.flatMap(l => ["mean", "std", "low", "high", "seeds"].map(of => `${l} ${of}`))], ...shown(test).map(line)];
  }
  return () => {
    const list = shown(test), seeds = Math.max(0, ...list.flatMap(c => c.points.map(p => p ? p.seeds : 0)));
    const top = labels.map((_, j) => Math.max(...list.map(c => c.points[j] ? Number(percent(c.points[j].mean)) : -1)));
    const cell = (p, j) => !p ? { text: "", sort: null } : { sort: p.mean, best: Number(percent(p.mean)) === top[j],
      text: percent(p.mean) + (p.std === null ? "" : " ± " + percent(p.std)) + (p.seeds < seeds ? " (n=" + p.seeds + ")" : "") };
    const lines = list.map(c => told([plainCell(c.encoding), plainCell(c.scaling + bestNote(c)), plainCell(c.temperature), ...c.points.map(cell)]));
    const feet = [];
    if (test.upper) feet.push(told(["upper bound", "", "", ...test.upper.map(u => u === null ? "" : percent(u))]));
    if (test.chance !== null) feet.push(told(["chance", "", "", ...labels.map(() => percent(test.chance))]));
    table.set(told(["encoding", "scaling", "temperature", ...labels]), lines, feet);
    count.textContent = list.length + " of " + test.curves.length + " lines shown" + (seeds ? ", " + seeds + (seeds === 1 ? " seed" : " seeds") : "");
  };
}

function costTable(cost, holder) {
  const table = sortable(`${cost.name}: ${cost.unit}`), labels = cost.columns.map(size => size.label);
  const spread = () => [["encoding", ...labels.flatMap(l => ["mean", "std", "low", "high", "count"].map(of => `${l} ${of}`))],
    ...costLines(cost).map(c => [c.encoding, ...c.points.flatMap(p => p ? [p.mean, p.std, p.low, p.high, p.count] : Array(5).fill(""))])];
  headed(holder, `${cost.name}: ${cost.unit}`, table, download(`${cost.name}.csv`, spread));
  holder.append(el("p", { class: "soft" }, cost.about));
  return () => table.set(["encoding", ...labels], costLines(cost).map(c => [plainCell(c.encoding), ...c.points.map(p => p ? { text: p.text, sort: p.mean } : plainCell(""))]));
}

// Training, a line a model; a column that no model has is left out
function trainingTable(holder) {
  const columns = { encoding: "encoding", seed: "seed", parameters: "parameters", steps: "steps", seconds: "seconds", wait_share: "waiting for data (%)", peak_mb: "peak memory (MiB)",
    accuracy: "accuracy (%)", loss: "loss" }, share = ["wait_share", "accuracy"];
  const known = Object.keys(columns).filter(name => DATA.trained.some(event => name in event));
  const cell = (name, v) => typeof v !== "number" ? plainCell(v) : { sort: v, text: share.includes(name) ? percent(v) : name === "loss" ? v.toPrecision(3) : number(v) };
  const table = sortable("Training, a line a model");
  headed(holder, "A line a model", table, download("training.csv", () => [known, ...DATA.trained.map(event => known.map(name => event[name]))]));
  table.set(known.map(name => columns[name]), DATA.trained.map(event => known.map(name => cell(name, event[name]))));
}

// Every row; made when it is first looked at. What is the same in all is told once; a long table begins with its first rows.
const FIRST = 1000;
const unpacked = ({ count, columns }) => Array.from({ length: count }, (_, i) => columns.map(({ values, at }) => values[at ? at[i] : i]));
const said = v => v === null ? "" : typeof v === "number" ? String(+v.toPrecision(6)) : v;
function rowTable(holder) {
  const table = sortable("Every row", FIRST), last = ["seed", "commit", "command"], all = unpacked(DATA.rows), name = j => DATA.columns[j].replaceAll("_", " ");
  const order = [...DATA.columns.filter(name => !last.includes(name)), ...last].map(name => DATA.columns.indexOf(name));
  const same = order.filter(j => all.every(row => row[j] === all[0][j])), rest = order.filter(j => !same.includes(j));
  const facts = same.filter(j => said(all[0][j]) !== "").flatMap(j => [el("dt", {}, name(j)), el("dd", {}, said(all[0][j]))]);
  if (facts.length) holder.append(el("p", { class: "soft" }, "The same in every row:"), el("dl", {}, ...facts));
  holder.append(table.box);
  if (all.length > FIRST) holder.append(el("p", { class: "act" }, el("button", { type: "button", onclick: event => { table.all(); event.target.disabled = true; } }, `Show all ${number(all.length)} rows`)));
  table.set(rest.map(name), all.map(row => rest.map(j => ({ sort: row[j] === "" ? null : row[j], text: said(row[j]) }))));
}
