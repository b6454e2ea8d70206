"use strict";
// Filters of the board: hides lines and whole tables; the choice is in the link.

const form = document.querySelector("form.filter");
const tables = [...document.querySelectorAll("section > section")].map((section) => ({
  section,
  title: section.querySelector("h2").textContent.toLowerCase(),
  lines: [...section.querySelectorAll("tbody tr")].map((line) => ({
    line,
    method: line.cells[1].textContent.toLowerCase(),
    seeds: Number(line.cells[4].textContent),
  })),
}));

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
