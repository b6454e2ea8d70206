"use strict";
// The reader's choices, kept in the link, and figures that follow them: a chart, its files, its numbers.

const data = JSON.parse(document.getElementById("data").textContent);
for (const { groups } of Object.values(data.boards)) for (const each of groups) each.points = records(each.points);
const { colours: COLOURS, symbols: SYMBOLS } = data;
const ink = (d) => data.styles[d.name][0];
const shape = (d) => data.styles[d.name][1];
const LIGHT = { "--back": "#ffffff", "--mark": "#dcecd8", "--text": "#1b1f24", "--faint": "#5b6570", "--line": "#d5dae0", "--plot-background": "#ffffff" };

const fragment = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
let link = fragment();
// Lists stand before figures, which read what the lists then hold.
const followers = [];
const follow = () => followers.forEach((each) => each());

function choose(key, ...values) {
  link.delete(key);
  for (const value of values) link.append(key, value);
  history.replaceState(null, "", `#${link}`);
  follow();
}
addEventListener("hashchange", () => { if (location.hash.includes("=")) { link = fragment(); follow(); } });

// A list whose choice is in the link; options() gives [value, text] pairs, and the first is the default.
const choices = [];
function choice(key, label, options) {
  const select = el("select", { onchange: () => choose(key, ...(select.selectedIndex ? [select.value] : [])) });
  const node = el("label", {}, label, select);
  const now = () => {
    const wanted = link.get(key), list = options().map(([value]) => `${value}`);
    return list.includes(wanted) ? wanted : list[0];
  };
  const fill = () => {
    select.replaceChildren(...options().map(([value, text]) => el("option", { value }, text)));
    select.value = now();
    node.hidden = select.length < 2;
  };
  followers.unshift(fill);
  fill();
  choices.push({ missing: () => (link.has(key) && link.get(key) !== now() ? `${label} ${link.get(key)}` : "") });
  return { node, get value() { return now(); } };
}

const metric = choice("metric", "Measured by", () => data.metrics.map((m) => [m.name, m.title]));
const measure = () => data.metrics.find((m) => m.name === metric.value);
const board = () => data.boards[metric.value] || { groups: [], across: [], order: [] };
// The first cell has the most methods, and of those the most seeds.
const seedsOf = (group) => d3.sum(group.points, (p) => p.values.length);
const size = (group) => [group.points.filter((p) => p.main).length, seedsOf(group)];
const cell = choice("cell", "Cell", () => d3.sort(board().groups, (a, b) => d3.descending(size(a)[0], size(b)[0]) || d3.descending(size(a)[1], size(b)[1]))
  .map((group) => [group.cell, group.short]));
const lines = choice("lines", "Lines", () => [["main", "one a method"], ["all", "all"]]);
const group = () => board().groups.find((each) => each.cell === cell.value);
const titleOf = () => group()?.title || "";

const seen = (name) => !link.getAll("hide").includes(name);
const shown = (points) => points.filter((point) => seen(point.name));
// One line of each method, which has its name then, unless all are asked for; `label` is its name among all.
const called = (p) => ({ ...p, label: p.name, name: lines.value === "main" ? p.method : p.name });
const chosen = (points) => shown(points).filter((p) => lines.value !== "main" || p.main).map(called);
// Figures in a closed part of the page are drawn when it is opened.
const closed = (node) => node.closest("details.part:not([open])") != null;
addEventListener("toggle", (event) => { if (event.target.matches("details.part[open]")) follow(); }, true);
const percent = (value) => (value == null ? "" : (100 * value).toFixed(1));
const plain = (value, digits = 3) => (value == null ? "" : value.toFixed(digits));
const asText = (value) => (measure().percent ? percent(value) : plain(value));
const exact = (value, text = asText) => (value == null ? "" : [text(value), value]);

// The symbol and colour of each name, as a picture of its own: above charts, in lists, in saved files.
const lookOf = (name) => [ink({ name }), shape({ name })];
function legend(names, width = 900, look = lookOf) {
  let x = 0, y = 12;
  const items = names.map((name) => {
    const wide = 28 + 7.3 * name.length;
    if (x && x + wide > width) { x = 0; y += 20; }
    const at = [x + 8, y];
    x += wide;
    const [fill, symbol] = look(name);
    return { name, at, fill, symbol: d3[`symbol${symbol[0].toUpperCase()}${symbol.slice(1)}`] };
  });
  const wide = items.length > 1 ? width : Math.min(width, x);
  const svg = d3.create("svg").attr("class", "legend").attr("width", wide).attr("height", y + 10).attr("viewBox", [0, 0, wide, y + 10]).attr("role", "img").attr("aria-label", `Legend: ${names.join(", ")}`).style("font-size", "12px");
  const entry = svg.selectAll("g").data(items).join("g").attr("transform", (d) => `translate(${d.at})`);
  entry.append("path").attr("d", (d) => d3.symbol(d.symbol, 62)()).attr("fill", (d) => d.fill);
  entry.append("text").attr("x", 10).attr("dy", "0.35em").attr("fill", "currentColor").text((d) => d.name);
  return svg.node();
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// Legend and chart under a title, with the colours of light paper, readable without this page.
function svgText(title, pictures) {
  let height = 30;
  const width = Math.max(...pictures.map((each) => each.width.baseVal.value));
  const parts = pictures.map((each) => {
    const copy = each.cloneNode(true);
    copy.querySelectorAll("[aria-label=tip]").forEach((tip) => tip.remove());
    copy.setAttribute("y", height);
    height += each.height.baseVal.value + 6;
    return new XMLSerializer().serializeToString(copy);
  });
  const head = `<title>${escaped(title)}</title><rect width="100%" height="100%" fill="#fff"/><text x="8" y="19" font-size="14" font-weight="600" fill="currentColor">${escaped(title)}</text>`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" color="#1b1f24">${head}${parts.join("")}</svg>`
    .replace(/var\((--[\w-]+)\)/g, (_, name) => LIGHT[name] ?? "currentColor");
}
const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

// Numbers in full, accuracies as fractions; a text that a spreadsheet would take for a formula gets an apostrophe before it.
function csvText(header, rows) {
  const one = (value) => {
    const text = Array.isArray(value) && value[1] != null ? `${value[1]}` : `${Array.isArray(value) ? value[0] : value}`.replace(/^(?=[=+\-@])/, "'");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [header.map((name) => name.replace(/ %$/, "")), ...rows].map((row) => row.map(one).join(",")).join("\n") + "\n";
}

// On paper charts are drawn anew, so that their letters are a little smaller than its text.
let paper = 0;
addEventListener("beforeprint", () => { paper = 880; views.forEach((each) => each()); });
addEventListener("afterprint", () => { paper = 0; views.forEach((each) => each()); });

// draw(width) gives {options, names, look, caption, header, rows}, or null where there is nothing to show.
const views = [];
function figure({ id, title, controls = [], draw }) {
  let made = null, before = 0;
  const holder = el("div", { class: "plot" }), caption = el("figcaption"), heading = el("h3", { id }, title);
  const numbers = el("details", {}, el("summary", {}, "Numbers"));
  const list = () => numbers.replaceChildren(numbers.firstChild, table({
    label: `${title}: numbers`,
    columns: made.header.map((name, i) => ({ title: name, num: made.rows.some((row) => Array.isArray(row[i])) })),
    groups: [{ rows: made.rows.map((cells) => ({ cells })) }],
  }));
  numbers.addEventListener("toggle", () => { if (numbers.open && made) list(); });
  const file = (kind) => `${title.toLowerCase().replaceAll(" ", "-")}.${kind}`;
  const button = (text, onclick) => el("button", { type: "button", "aria-label": `Save ${title} as ${text}`, onclick }, text);
  const buttons = el("span", { class: "files" },
    button("SVG", () => save(file("svg"), "image/svg+xml", svgText(title, [...holder.querySelectorAll(":scope > svg")]))),
    button("CSV", () => save(file("csv"), "text/csv", csvText(made.header, made.rows))));
  const node = el("figure", { "aria-labelledby": id }, el("div", { class: "head" }, heading, buttons),
    controls.length ? el("div", { class: "controls" }, ...controls.map((each) => each.node)) : null, holder, caption, numbers);
  function redraw() {
    if (closed(node)) {
      node.hidden = !draw(900);
      return;
    }
    node.hidden = false;
    const room = paper ? (node.parentElement.className === "pair" ? paper / 2 - 8 : paper) : holder.clientWidth || 900;
    const width = Math.max(300, Math.min(room, 1248));
    made = draw(width);
    node.hidden = !made;
    if (!made) return;
    const plot = Plot.plot({ width, marginLeft: 52, marginBottom: 44, ...made.options, style: { fontSize: "12px", overflow: "visible", ...made.options.style } });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${title}. ${made.caption}`);
    holder.replaceChildren(...(made.names?.length > 1 ? [legend(made.names, width, made.look)] : []), plot);
    const wide = plot.width.baseVal.value > width + 1;
    for (const [key, value] of Object.entries({ tabindex: 0, role: "region", "aria-label": `${title}, scrolls sideways` })) {
      if (wide) holder.setAttribute(key, value);
      else holder.removeAttribute(key);
    }
    caption.textContent = made.caption;
    numbers.hidden = !made.rows.length;
    if (numbers.open) list();
  }
  // In the next frame: browsers report a layout that changes while its changes are told as an error.
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (holder.clientWidth && Math.abs(holder.clientWidth - before) > 8) { before = holder.clientWidth; redraw(); }
  })).observe(holder);
  followers.push(redraw);
  views.push(redraw);
  return node;
}
