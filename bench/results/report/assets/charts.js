"use strict";
// Charts with Observable Plot: each is a figure with controls above and its numbers below.

const INKS = ["#4269d0", "#d9822b", "#e0484f", "#3a9e8f", "#4c9a3f", "#d667a8", "#9b6bd6", "#9c6b4e", "#5f9ed1", "#8a8f98"];
const percent = (value) => (value == null ? "" : (100 * value).toFixed(1));
const plain = (value, digits = 3) => (value == null ? "" : value.toFixed(digits));

function choice(label, options, onchange) {
  const select = el("select", { onchange }, ...options.map(([value, text]) => el("option", { value }, text)));
  return { node: options.length > 1 ? el("label", {}, label, select) : null, get value() { return options.length ? select.value : null; } };
}

// One colour and symbol a name, the same in all charts.
function scales(names) {
  const domain = [...new Set(names)].sort();
  return {
    color: { domain, range: domain.map((_, i) => INKS[i % INKS.length]), legend: false },
    symbol: { domain, legend: domain.length > 1 }, // with the colours; both together tell 70 names apart
  };
}

// draw(width) gives Plot's options, a caption and the numbers: {options, caption, header, rows}.
function chart({ label, controls, draw }) {
  const holder = el("div", {}), caption = el("figcaption"), numbers = el("details", {}, el("summary", {}, "The numbers"));
  let made = null;
  numbers.addEventListener("toggle", () => {
    if (numbers.open && made) {
      numbers.replaceChildren(numbers.firstChild, table({
        label: `${label}: numbers`,
        columns: made.header.map((title, i) => ({ title, num: i > 0 })),
        groups: [{ rows: made.rows.map((cells) => ({ cells })) }],
      }));
      made.listed = true;
    }
  });
  function redraw() {
    const width = Math.max(280, Math.min(holder.clientWidth || 900, 1000));
    made = draw(width);
    if (made.options) {
      const plot = Plot.plot({ width, height: Math.max(260, Math.min(420, width * 0.5)), marginLeft: 52, marginBottom: 44, ariaLabel: label, style: { fontSize: "12px", overflow: "visible" }, ...made.options });
      holder.replaceChildren(plot);
    } else holder.replaceChildren(el("p", { class: "faint" }, "Nothing to draw here."));
    caption.textContent = made.caption;
    numbers.open = false;
    numbers.hidden = !made.rows.length;
  }
  const figure = el("figure", {}, el("div", { class: "controls" }, ...controls.map((c) => c.node)), holder, caption, numbers);
  let before = 0;
  new ResizeObserver(() => {
    if (Math.abs(holder.clientWidth - before) > 8) { before = holder.clientWidth; redraw(); }
  }).observe(holder);
  return { figure, redraw };
}

const PERCENT = { grid: true, percent: true, nice: true };

function sweepChart(data) {
  let view;
  const again = () => { fill(); view.redraw(); };
  const metric = choice("Metric", data.metrics.filter((m) => data.sweeps[m.name].length).map((m) => [m.name, m.title]), again);
  const which = el("select", { onchange: () => view.redraw() });
  function fill() {
    const options = data.sweeps[metric.value] || [];
    which.replaceChildren(...options.map((sweep, i) => el("option", { value: i }, sweep.title)));
  }
  fill();
  const family = { node: el("label", {}, "Cells", which) };
  view = chart({
    label: "Accuracy along an axis", controls: [metric, family],
    draw() {
      const sweep = data.sweeps[metric.value][+which.value || 0], m = data.metrics.find((each) => each.name === metric.value);
      const points = sweep.points, xs = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
      const wide = xs.at(-1) / xs[0] > 5;
      return {
        options: {
          ...scales(points.map((p) => p.name)),
          x: { type: wide ? "log" : "linear", label: sweep.axis.replace("_", " "), ticks: xs, tickFormat: (x) => `${x}`, inset: 12 },
          y: { ...PERCENT, percent: m.percent, label: m.title },
          marks: [
            Plot.ruleX(points.filter((p) => p.low != null), { x: "x", y1: "low", y2: "high", stroke: "name", strokeOpacity: 0.6, strokeWidth: 2 }),
            Plot.lineY(points, { x: "x", y: "mean", z: "name", stroke: "name", sort: "x" }),
            Plot.dot(points, { x: "x", y: "mean", stroke: "name", symbol: "name", r: 4 }),
            Plot.tip(points, Plot.pointer({ x: "x", y: "mean", stroke: "name", channels: { seeds: "n" } })),
          ],
        },
        caption: `${sweep.title}. Means over seeds; bars are 95 % t-intervals, drawn from 3 seeds on.`,
        header: ["method", sweep.axis, m.title, "low", "high", "seeds"],
        rows: points.map((p) => [p.name, [`${p.x}`, p.x], ...numbers(p, m.percent), [`${p.n}`, p.n]]),
      };
    },
  });
  return view;
}

function numbers(point, asPercent) {
  const text = asPercent ? percent : plain;
  return ["mean", "low", "high"].map((name) => [text(point[name]), point[name]]);
}

function curveChart(data) {
  let view;
  const again = () => view.redraw();
  const all = Object.fromEntries(Object.entries(data.curves).map(([id, columns]) => [id, records(columns)]));
  const ids = Object.keys(all).filter((id) => all[id].some((p) => p.round > 0));
  ids.sort((a, b) => all[b].length - all[a].length);
  const cell = choice("Class", ids.map((id) => [id, data.classes[id]]), again);
  const metric = choice("Metric", [["knn_acc", "k-NN %"], ["linear_acc", "linear %"]], again);
  const over = choice("Over", [["round", "rounds"], ["gb", "GB sent and received"]], again);
  view = chart({
    label: "Accuracy over rounds or bytes", controls: [cell, metric, over],
    draw() {
      const points = (all[cell.value] || []).filter((p) => p.metric === metric.value), x = over.value;
      const title = metric.value === "knn_acc" ? "k-NN %" : "linear %";
      if (!points.length) return { options: null, caption: "", header: [], rows: [] };
      return {
        options: {
          ...scales(points.map((p) => p.name)),
          x: { label: x === "gb" ? "GB, both directions" : "round" },
          y: { ...PERCENT, label: title },
          marks: [
            Plot.areaY(points.filter((p) => p.low != null), { x, y1: "low", y2: "high", z: "name", fill: "name", fillOpacity: 0.15 }),
            Plot.lineY(points, { x, y: "mean", z: "name", stroke: "name" }),
            Plot.dot(points, { x, y: "mean", stroke: "name", symbol: "name", r: 3 }),
            Plot.tip(points, Plot.pointer({ x, y: "mean", stroke: "name", channels: { seeds: "n" } })),
          ],
        },
        caption: `${data.classes[cell.value]}. Means over seeds with 95 % t-intervals; round 0 is the untrained encoder. evaluation.every adds points in between.`,
        header: ["method", "round", "GB", title, "low", "high", "seeds"],
        rows: points.map((p) => [p.name, [`${p.round}`, p.round], [p.gb.toPrecision(4), p.gb], ...numbers(p, true), [`${p.n}`, p.n]]),
      };
    },
  });
  return ids.length ? view : null;
}

function correlationText(c) {
  const one = (value, low, high) => value == null ? "–" : low == null ? value.toFixed(2) : `${value.toFixed(2)} [${low.toFixed(2)}, ${high.toFixed(2)}]`;
  return [one(c.pearson, c.pearson_low, c.pearson_high), one(c.spearman, c.spearman_low, c.spearman_high)];
}

function scatterOptions(points, title) {
  return {
    ...scales(points.map((p) => p.name)),
    x: { label: "objective (label-free)", grid: true, nice: true, inset: 8 },
    y: { ...PERCENT, label: title, inset: 8 },
    marks: [
      Plot.dot(points, { x: "x", y: "y", stroke: "name", symbol: "name", r: 4 }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", stroke: "name" })),
    ],
  };
}

function scatterChart(data) {
  let view;
  const again = () => view.redraw();
  const size = (id) => Math.max(...Object.values(data.scatter).map((classes) => (classes[id] || []).reduce((n, s) => n + s.n, 0)));
  const ids = Object.keys(data.classes).filter((id) => size(id) > 0).sort((a, b) => size(b) - size(a));
  const metrics = data.metrics.filter((m) => data.scatter[m.name]);
  const cell = choice("Class", ids.map((id) => [id, data.classes[id]]), again);
  const metric = choice("Metric", metrics.map((m) => [m.name, m.title]), again);
  const names = [...new Set(Object.values(data.scatter).flatMap((c) => Object.values(c).flatMap((s) => s.map((e) => e.name))))].sort();
  const method = choice("Method", [["", "all"], ...names.map((name) => [name, name])], again);
  if (!ids.length || !metrics.length) return null;
  view = chart({
    label: "Objective against accuracy", controls: [cell, metric, method],
    draw() {
      const found = (data.scatter[metric.value][cell.value] || []).filter((s) => !method.value || s.name === method.value);
      const points = found.flatMap((s) => s.points.map(([x, y]) => ({ name: s.name, x, y })));
      const title = metrics.find((m) => m.name === metric.value).title;
      return {
        options: points.length ? scatterOptions(points, title) : null,
        caption: `${data.classes[cell.value]}. One mark a run; tuning maximises the objective without seeing an accuracy. Below: correlations with 95 % intervals.`,
        header: ["method", "runs", "Pearson", "Spearman"],
        rows: found.map((s) => [s.name, [`${s.n}`, s.n], ...correlationText(s)]),
      };
    },
  });
  return view;
}

function angleChart(data) {
  let view;
  const again = () => view.redraw();
  const found = data.geometry;
  const run = choice("Run", found.map((g, i) => [i, `${g.title} · ${g.setting} · ${g.run_id.slice(0, 8)}`]), again);
  const kinds = found.length ? Object.keys(found[0].angles).sort() : [];
  const kind = choice("Angles", kinds.map((name) => [name, name]), again);
  if (!found.length) return null;
  view = chart({
    label: "Angles between classes", controls: [run, kind],
    draw() {
      const shown = found[run.value], { edges, counts, median } = shown.angles[kind.value];
      const bars = counts.map((count, i) => ({ count, from: edges[i], to: edges[i + 1] }));
      return {
        options: {
          x: { label: "angle between mean features of two classes, degrees" }, y: { label: "pairs of classes", grid: true },
          marks: [Plot.rectY(bars, { x1: "from", x2: "to", y: "count", fill: INKS[0], tip: true }), Plot.ruleX(median == null ? [] : [median], { strokeDasharray: "4 3" }), Plot.ruleY([0])],
        },
        caption: `${shown.title}, ${shown.setting}.` + (median == null ? "" : ` The dashed line is the median, ${median.toFixed(1)} degrees; 90 is orthogonal.`),
        header: ["from", "to", "pairs"],
        rows: bars.filter((bar) => bar.count).map((bar) => [bar.from, bar.to, bar.count].map((v) => [`${v}`, v])),
      };
    },
  });
  return view;
}

function mapChart(data) {
  let view;
  const found = data.geometry.filter((g) => g.map);
  const run = choice("Run", found.map((g, i) => [i, `${g.title} · ${g.setting} · ${g.run_id.slice(0, 8)}`]), () => view.redraw());
  if (!found.length) return null;
  view = chart({
    label: "Map of test features", controls: [run],
    draw() {
      const shown = found[run.value], { points, labels, class_names: names } = shown.map;
      const dots = points.map(([x, y], i) => ({ x, y, class: names[labels[i]] }));
      return {
        options: {
          ...scales(dots.map((dot) => dot.class)), x: { axis: null }, y: { axis: null }, height: 460,
          marks: [Plot.dot(dots, { x: "x", y: "y", stroke: "class", symbol: "class", r: 2.5, tip: true })],
        },
        caption: `${shown.title}, ${shown.setting}. t-SNE of features of test images; distances between clusters mean little.`,
        header: [], rows: [],
      };
    },
  });
  return view;
}
