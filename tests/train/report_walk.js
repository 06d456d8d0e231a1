// What a reader does with the page of a report, and what is seen then: the body of a function, run in the page.
const said = {}, tables = () => [...document.querySelectorAll("#tables table")], cells = (table, where) =>
  [...table.querySelectorAll(where + " tr")].map(row => [...row.children].map(cell => cell.textContent));
const lines = () => [...document.querySelectorAll("#charts .line")].map(line => line.dataset.of);
const paths = () => [...document.querySelectorAll("#charts .line")].map(line => line.getAttribute("d")).join();
const box = name => boxes().find(one => one.value === name);
function set(id, value) { $(id).value = value; $(id).dispatchEvent(new Event("change", { bubbles: true })); }
const key = () => [...document.querySelector("#charts .key").querySelectorAll("tr")].map(row => [...row.children].slice(1).map(cell => cell.textContent));

said.lines = lines();
box("axial").click();
said.without = lines();
said.cheaper = [...document.querySelectorAll("#costs .line")].map(line => line.dataset.of);
said.untabled = tables().flatMap(table => cells(table, "tbody").map(line => line[0]));
history.replaceState(null, "", toLink());
said.link = location.hash;
box("axial").click();
const [everyOne, noOne] = document.querySelectorAll("#encodings button");
noOne?.click();
said.nothing = [lines().length, document.querySelectorAll("#costs .chart text").length, document.querySelectorAll("#tables tbody tr").length];
everyOne?.click();
const before = paths();
set("scaling", "=yarn");
said.moved = paths() !== before;
said.yarn = tables().map(table => cells(table, "tbody"));
const picture = document.querySelector("#charts .chart"), first = paths();
picture.focus();
picture.dispatchEvent(new KeyboardEvent("keydown", { key: "Home", bubbles: true }));
said.home = [key(), picture.getAttribute("aria-valuetext"), document.querySelector("#charts caption").textContent];
picture.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
said.right = key();
set("scaling", "all");
said.all = tables().map(table => [cells(table, "thead")[0], cells(table, "tbody"), cells(table, "tfoot")]);
said.best = tables().map(table => [...table.querySelectorAll("tbody td")].filter(cell => cell.classList.contains("best")).map(cell => cell.textContent));
const column = tables()[0].querySelectorAll("th").length - 1, press = () => { const at = tables()[0].querySelectorAll("thead button")[column]; at.focus(); at.click(); };
const sorted = () => [cells(tables()[0], "tbody").map(line => parseFloat(line[column])), tables()[0].querySelectorAll("th")[column].getAttribute("aria-sort"), document.activeElement.textContent];
press();
said.down = sorted();
press();
said.up = sorted();
said.dim = [];
for (const name of ["mixed <b>", null]) { stress(name); said.dim.push([document.documentElement.classList.contains("dim"), document.querySelectorAll(".chart .on").length]); }
const files = {};
save = (name, lines) => { files[name] = lines; };
for (const button of document.querySelectorAll("button")) if (button.textContent === "Download CSV") button.click();
said.files = files;
said.costs = [...document.querySelectorAll("#costs table:not(.key)")].map(table => cells(table, "tbody"));
said.training = cells(document.querySelector("#training table"), "thead").concat(cells(document.querySelector("#training table"), "tbody"));
dispatchEvent(new Event("beforeprint"));
said.print = [document.querySelectorAll("details:not([open])").length, cells($("rows"), "tbody").length, $("rows").querySelector("dl").textContent];
dispatchEvent(new Event("afterprint"));
said.after = document.querySelectorAll("details[open]").length;
$("theme").click();
said.theme = [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor, $("theme").textContent];
said.nameless = [...document.querySelectorAll("input, select, button, [tabindex], summary, img")].filter(node =>
  !(node.labels?.length || node.getAttribute("aria-label") || node.alt || (!node.hasAttribute("tabindex") && node.textContent.trim()))).map(node => node.outerHTML);
said.unreachable = [...document.querySelectorAll("button, select, input, summary")].filter(node => node.tabIndex < 0).length;
said.errors = ERRORS;
said.loaded = performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:"));
return said;
