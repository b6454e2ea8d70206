"use strict";
// Filters of the board: hides lines and whole tables; the choice is in the link.

const form = document.querySelector("form.filter");
// Columns are found by their heads, so that a new one beside them changes nothing here.
const column = (table, name) => {
  const index = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.trim() === name);
  if (index < 0) throw new Error(`a table of the board has no column ${name}`);
  return index;
};
const tables = [...document.querySelectorAll("section > section")].map((section) => {
  const table = section.querySelector("table");
  const [method, seeds] = [column(table, "method"), column(table, "seeds")];
  return {
    section,
    title: section.querySelector("h2").textContent.toLowerCase(),
    lines: [...table.tBodies[0].rows].map((line) => ({
      line,
      method: line.cells[method].textContent.toLowerCase(),
      seeds: Number(line.cells[seeds].textContent),
    })),
  };
});

function filter() {
  const { method, setting, seeds } = Object.fromEntries(new FormData(form));
  let shown = 0;
  for (const table of tables) {
    const fits = setting.toLowerCase().split(/\s*,\s*/).every((part) => table.title.includes(part));
    let some = false;
    for (const each of table.lines) {
      const seen = fits && each.method.includes(method.toLowerCase()) && each.seeds >= Number(seeds);
      each.line.hidden = !seen;
      some ||= seen;
      shown += seen;
    }
    table.section.hidden = !some;
  }
  form.querySelector("output").textContent = `${shown} of ${tables.flatMap((each) => each.lines).length} lines`;
}

const given = new URLSearchParams(location.search);
for (const field of form.elements) if (given.has(field.name)) field.value = given.get(field.name);
form.addEventListener("input", () => {
  const chosen = [...new FormData(form)].filter(([name, value]) => value && !(name === "seeds" && value === "1"));
  history.replaceState(null, "", `?${new URLSearchParams(chosen)}${location.hash}`);
  filter();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
filter();
