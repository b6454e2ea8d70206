"use strict";
// Tables: sorted by the buttons in their heads, filtered by words, shown in parts when long.

function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// Lists by column, as records.
function records(columns) {
  const lists = Object.entries(columns), count = lists.length ? lists[0][1].length : 0;
  return Array.from({ length: count }, (_, i) => Object.fromEntries(lists.map(([name, list]) => [name, list[i]])));
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
}

// columns: {title, num, code, hint}. groups: {title, note, rows: {cells, mark}}, where cells is a list of
// texts or [text, number], or a function that makes it when the row is first needed.
// Rows are sorted within their group: what one group holds is not compared with another.
function table({ label, columns, groups, limit = 300 }) {
  const key = (cell) => (Array.isArray(cell) ? cell[1] : cell === "" ? null : cell);
  const words = (cell) => (Array.isArray(cell) ? cell[0] : cell);
  const total = groups.reduce((sum, group) => sum + group.rows.length, 0);
  const cells = (row) => (typeof row.cells === "function" ? (row.cells = row.cells()) : row.cells);
  const has = (group, row, wanted) => {
    row.text ??= [group.title || "", ...cells(row).map((cell, i) => `${columns[i].title}=${words(cell)}`)].join(" ").toLowerCase();
    return wanted.every((word) => row.text.includes(word));
  };
  let column = -1, direction = 1, most = limit;

  const heads = columns.map((each, i) =>
    el("th", { scope: "col", class: each.num ? "num" : null, "aria-sort": "none", title: each.hint },
      el("button", { type: "button", onclick: () => sortBy(i) }, each.title)));
  const body = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...heads)));
  const status = el("span", { class: "faint", role: "status" });
  const search = el("input", { type: "search", placeholder: "simclr alpha=0.1", "aria-label": `Filter ${label}` });
  const more = el("button", { type: "button", class: "more", onclick: () => { most = Infinity; draw(); } });
  search.value = link.get(`find-${label}`) || "";
  search.addEventListener("input", () => { most = limit; draw(); });
  search.addEventListener("change", () => choose(`find-${label}`, ...(search.value ? [search.value] : [])));

  function sortBy(i) {
    direction = column === i ? -direction : columns[i].num && columns[i].title !== "rank" ? -1 : 1;
    column = i;
    heads.forEach((head, j) =>
      head.setAttribute("aria-sort", j !== i ? "none" : direction > 0 ? "ascending" : "descending"));
    draw();
  }

  function draw() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let matching = 0, shown = 0;
    const parts = [];
    for (const group of groups) {
      let rows = wanted.length ? group.rows.filter((row) => has(group, row, wanted)) : group.rows;
      matching += rows.length;
      if (!rows.length || shown >= most) continue;
      if (column >= 0) {
        const value = (row) => key(cells(row)[column]);
        rows = [...rows].sort((a, b) => {
          const x = value(a), y = value(b);
          return x == null || y == null ? compare(x, y) : direction * compare(x, y);
        });
      }
      rows = rows.slice(0, most - shown);
      shown += rows.length;
      parts.push(el("tbody", {},
        group.title ? el("tr", {}, el("th", { scope: "rowgroup", colspan: columns.length }, el("div", {}, group.title, group.note ? el("p", { class: "faint" }, group.note) : null))) : null,
        ...rows.map(line)));
    }
    body.querySelectorAll("tbody").forEach((part) => part.remove());
    body.append(...parts);
    status.textContent = matching === total ? `${total.toLocaleString("en")} rows` : `${matching.toLocaleString("en")} of ${total.toLocaleString("en")} rows`;
    more.textContent = `Show all ${matching.toLocaleString("en")}`;
    more.hidden = shown >= matching;
  }

  function line(row) {
    return el("tr", { class: row.mark || null }, ...cells(row).map((cell, i) => {
      const exact = Array.isArray(cell) && typeof cell[1] === "number" ? String(cell[1]) : null;
      const kind = columns[i].num ? "num" : columns[i].code ? "code" : words(cell).length > 28 ? "long" : "text";
      return el("td", { class: kind, title: exact }, words(cell));
    }));
  }

  draw();
  const tools = total > 8 ? el("div", { class: "controls" }, el("label", {}, "Filter", search), status) : null;
  return el("div", {}, tools, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, body), more);
}
