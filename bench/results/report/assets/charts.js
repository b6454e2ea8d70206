"use strict";
// The charts, each a figure that Observable Plot draws from numbers that Python has worked out.

const GRID = () => ({ grid: true, percent: measure().percent, nice: true, label: measure().title });
const dots = (points, x, y, more) => Plot.dot(points, { x, y, fill: ink, symbol: shape, r: 5, stroke: "var(--back)", strokeWidth: 0.8, ...more });
const tips = (points, x, y, title, more) => Plot.tip(points, Plot.pointer({ x, y, title, ...more }));
const known = (points, name) => points.filter((point) => point[name] != null);
const unique = (points) => [...new Set(points.map((point) => point.name))];
const spread = (p) => (p.low == null ? asText(p.mean) : `${asText(p.mean)} ± ${asText((p.high - p.low) / 2)}`);
const best = (p) => p.standing === "first" || p.standing === "alike";
const STANDING = { first: "first", alike: "not told from the first", unclear: "unclear", worse: "told from the first", untested: "not tested" };
const INTERVALS = "Intervals are 95 % t-intervals over seeds, from 3 seeds on.";
const leftOf = (names) => Math.min(190, 26 + 6.6 * Math.max(4, ...names.map((name) => name.length)));
const cutTo = (left) => (name) => (26 + 6.6 * name.length > left ? `${name.slice(0, (left - 33) / 6.6)}…` : name);

function heatmap() {
  const shade = choice("shade", "Shaded by", () => [["value", "the value"], ["gain", "gain over the start"], ["place", "place within the cell"]]);
  return figure({
    id: "heatmap", title: "Methods and cells", controls: [shade],
    draw(width) {
      const groups = board().groups;
      const points = groups.flatMap((each) => chosen(each.points).map((p) => ({ ...p, cell: each.short, of: each.points.filter((q) => q.rank).length })));
      if (groups.length < 2 || !points.length) return null;
      const label = new Map(points.map((p) => [p.label, p.name])), names = [...new Set(board().order.map((name) => label.get(name)).filter((name) => name != null))], left = leftOf(names) + 12;
      const value = { value: (p) => (p.diverged ? null : p.mean), gain: (p) => p.gain, place: (p) => (p.of > 1 && p.rank ? (p.of - p.rank) / (p.of - 1) : null) }[shade.value];
      const [low, high] = d3.extent(points, value), at = (p) => (high > low ? (value(p) - low) / (high - low) : 1);
      const text = (p) => (p.diverged ? "diverged" : p.mean == null ? "no value" : shade.value === "gain" ? (p.gain == null ? "" : `${p.gain >= 0 ? "+" : ""}${asText(p.gain)}`) : asText(p.mean)) + (best(p) ? " *" : "");
      const pitch = Math.max(74, 12 + 6.7 * Math.max(...groups.flatMap((each) => each.short.split(" ").map((word) => word.length))));
      const lines = (each) => d3.sum(each.short.split(" · "), (part) => Math.ceil((7.4 * part.length) / pitch));
      const above = 13 * Math.max(...groups.map(lines)) + 12;
      return {
        options: {
          width: Math.max(width, left + pitch * groups.length), height: above + 26 * names.length + 10, marginLeft: left, marginTop: above, marginBottom: 10,
          x: { axis: null, domain: groups.map((each) => each.short), padding: 0.04 },
          y: { domain: names, label: null, tickSize: 0, tickPadding: 18, padding: 0.08, tickFormat: cutTo(left) },
          marks: [
            Plot.dot(names.map((name) => ({ name })), { y: "name", frameAnchor: "left", dx: -10, fill: ink, symbol: shape, r: 4.5 }),
            Plot.axisX({ anchor: "top", tickSize: 0, lineWidth: pitch / 14, label: null, tickFormat: (short) => short.replaceAll(" · ", "\n") }),
            Plot.cell(points, { x: "cell", y: "name", fill: (p) => (value(p) == null ? "var(--raised)" : d3.interpolateCividis(at(p))) }),
            Plot.text(points, { x: "cell", y: "name", text, fill: (p) => (value(p) == null ? "currentColor" : at(p) > 0.55 ? "#000" : "#fff"), fontWeight: (p) => (best(p) ? 700 : 400), pointerEvents: "none" }),
            tips(points, "cell", "name", (p) => `${p.label}\n${p.cell}\n${measure().title} ${spread(p)}\nrank ${p.rank ?? "–"} of ${p.of}, ${p.values.length} seeds\n${STANDING[p.standing]}`, { maxRadius: 120 }),
          ],
        },
        caption: `${measure().title}, mean over seeds; an empty field was not run. * is the best of its cell and what a test cannot tell from it; there is none where no test has the power to tell. Only fields of one column are comparable.`,
        header: ["method", "cell", measure().title, "gain", "rank", "seeds", "standing"],
        rows: points.map((p) => [p.label, p.cell, exact(p.mean), exact(p.gain), exact(p.rank, String), exact(p.values.length, String), STANDING[p.standing]]),
      };
    },
  });
}

function ranking() {
  return figure({
    id: "ranking", title: "Methods", controls: [lines],
    draw(width) {
      const points = known(chosen(group()?.points || []), "mean"), names = unique(points), left = leftOf(names), wide = width > 560;
      if (!points.length) return null;
      const ends = d3.extent([...points.flatMap((p) => [p.low ?? p.mean, p.high ?? p.mean, p.untrained, ...p.values])]);
      const pad = (ends[1] - ends[0]) * 0.04 || 0.01, [low, high] = [ends[0] - pad, ends[1] + pad];
      const scale = measure().percent ? 100 : 1, seeds = points.flatMap((p) => p.values.map((value) => ({ name: p.name, value })));
      return {
        options: {
          height: 25 * names.length + 74, marginLeft: left, marginTop: 24, marginRight: wide ? 150 : 16,
          x: { ...GRID(), nice: false, domain: [low * scale, high * scale] }, y: { domain: names, label: null, tickSize: 0, tickFormat: cutTo(left) },
          marks: [
            Plot.barX(points.filter(best), { x1: () => low, x2: () => high, y: "name", fill: "var(--mark)", insetTop: -2, insetBottom: -2 }),
            Plot.tickX(known(points, "untrained"), { x: "untrained", y: "name", strokeDasharray: "3 3", strokeOpacity: 0.7 }),
            Plot.ruleY(known(points, "low"), { x1: "low", x2: "high", y: "name", stroke: ink, strokeWidth: 2.5 }),
            Plot.tickX(seeds, { x: "value", y: "name", stroke: ink, strokeOpacity: 0.55, inset: 6 }),
            dots(points, "mean", "name", { r: 6 }),
            wide ? Plot.text(points, { y: "name", frameAnchor: "right", dx: 10, textAnchor: "start", text: (p) => `${spread(p)}${p.diverged ? `, ${p.diverged} diverged` : ""}${p.standing === "unclear" ? "  ?" : best(p) ? "  *" : ""}` }) : null,
            tips(points, "mean", "name", (p) => `${p.label}\n${measure().title} ${spread(p)}\n${p.values.length} seeds: ${p.values.map(asText).join(", ")}\n${STANDING[p.standing]}`),
          ],
        },
        caption: `${titleOf()}. ${lines.value === "main" ? "Of each method the line with the most seeds. " : ""}Symbols are means, strokes single seeds, dashed ones the start. ${INTERVALS} ${group().power}`,
        header: ["method", "rank", measure().title, "low", "high", "gain", "seeds", "values", "standing"],
        rows: points.map((p) => [p.label, exact(p.rank, String), exact(p.mean), exact(p.low), exact(p.high), exact(p.gain), exact(p.values.length, String), p.values.map(asText).join(" "), STANDING[p.standing]]),
      };
    },
  });
}

// Of each method the line that is in the most places, and of those with the most seeds; or all lines.
function longest(points) {
  if (lines.value !== "main") return points;
  const best = new Map(d3.rollups(points, (of) => d3.greatest(d3.groups(of, (p) => p.name), (a, b) => d3.ascending(a[1].length, b[1].length) || d3.ascending(d3.sum(a[1], (p) => p.n), d3.sum(b[1], (p) => p.n)))[0], (p) => p.method));
  return points.filter((p) => best.get(p.method) === p.name);
}

function axis() {
  const which = choice("axis", "Axis", () => (data.sweeps[metric.value] || []).map((sweep, i) => [i, sweep.title]));
  return figure({
    id: "axis", title: "Along an axis", controls: [which],
    draw(width) {
      const sweep = data.sweeps[metric.value]?.[which.value], kept = sweep ? longest(shown(sweep.points)).map(called) : [], names = unique(kept);
      if (!names.length) return null;
      const xs = [...new Set(sweep.points.map((p) => p.x))].sort(d3.ascending);
      // Even steps with the methods of a step side by side, so that intervals stay apart.
      const dodge = (p) => xs.indexOf(p.x) + (names.indexOf(p.name) - (names.length - 1) / 2) * (0.6 / names.length);
      const points = kept.map((p) => ({ ...p, at: dodge(p) }));
      const axisName = sweep.axis.replaceAll("_", " ");
      return {
        names,
        options: {
          height: Math.max(280, Math.min(440, width * 0.45)),
          x: { domain: [-0.5, xs.length - 0.5], ticks: xs.map((_, i) => i), tickFormat: (i) => `${xs[i] ?? ""}`, label: axisName, labelAnchor: "center" }, y: GRID(),
          marks: [
            Plot.rect(xs.map((_, i) => i), { x1: (i) => i - 0.36, x2: (i) => i + 0.36, fill: "var(--line)", fillOpacity: 0.45 }),
            Plot.lineY(points, { x: "at", y: "mean", z: "name", stroke: ink, strokeOpacity: 0.45, strokeWidth: 1.2 }),
            Plot.ruleX(known(points, "low"), { x: "at", y1: "low", y2: "high", stroke: ink, strokeWidth: 2 }),
            dots(points, "at", "mean"),
            tips(points, "at", "mean", (p) => `${p.label}, ${axisName} ${p.x}\n${measure().title} ${spread(p)}\n${p.n} seeds`),
          ],
        },
        caption: `${sweep.title}. Means over seeds; each shaded strip is one value of the axis, and methods stand side by side in it so that they can be told apart. A method without a symbol diverged there, or was not measured. ${INTERVALS}`,
        header: ["method", sweep.axis, measure().title, "low", "high", "seeds"],
        rows: points.map((p) => [p.label, exact(p.x, String), exact(p.mean), exact(p.low), exact(p.high), exact(p.n, String)]),
      };
    },
  });
}

function cost(id, title, x, label) {
  return figure({
    id, title,
    draw(width) {
      const points = known(known(chosen(group()?.points || []), "mean"), x), front = points.filter((p) => p[`front_${x}`]).sort((a, b) => a[x] - b[x]);
      if (points.length < 2) return null;
      const [low, high] = d3.extent(points, (p) => p[x]), [worst, top] = d3.extent(points, (p) => p.mean);
      const apart = (a, b) => Math.abs(a[x] - b[x]) > 0.25 * (high - low) || Math.abs(a.mean - b.mean) > 0.06 * (top - worst);
      const named = [...front].reverse().reduce((kept, p) => (kept.every((other) => apart(p, other)) ? [...kept, p] : kept), []);
      return {
        names: unique(points),
        options: {
          height: Math.max(300, Math.min(400, width * 0.6)), marginRight: 24,
          x: { label, grid: true, type: low > 0 && high / low > 5 ? "log" : "linear", ...(low > 0 && high / low > 5 ? { tickFormat: (v) => v.toLocaleString("en", { notation: "compact" }) } : { zero: low < high * 0.3, nice: true }), insetLeft: 70, insetRight: 10 }, y: GRID(),
          marks: [
            Plot.line(front, { x, y: "mean", curve: "step-after", stroke: "currentColor", strokeOpacity: 0.55, strokeDasharray: "5 3" }),
            Plot.ruleX(known(points, "low"), { x, y1: "low", y2: "high", stroke: ink, strokeOpacity: 0.5, strokeWidth: 1.5 }),
            dots(points, x, "mean"),
            Plot.text(named, { x, y: "mean", text: "name", dx: -7, dy: -8, textAnchor: "end", stroke: "var(--back)", strokeWidth: 3, fill: "currentColor" }),
            tips(points, x, "mean", (p) => `${p.label}\n${label} ${d3.format(".3~r")(p[x])}\n${measure().title} ${spread(p)}`),
          ],
        },
        caption: `${titleOf()}. The dashed line is the Pareto front: no other method is at most as costly and at least as good. ${INTERVALS}`,
        header: ["method", label, measure().title, "low", "high", "on the front"],
        rows: points.map((p) => [p.label, [p[x].toPrecision(4), p[x]], exact(p.mean), exact(p.low), exact(p.high), p[`front_${x}`] ? "yes" : ""]),
      };
    },
  });
}

function difference() {
  const ranked = () => board().across.filter((each) => each.ranks.length > 1);
  const which = choice("ranks", "Cells", () => ranked().map((each, i) => [i, each.title]));
  return figure({
    id: "ranks", title: "Mean ranks", controls: [which],
    draw(width) {
      const found = ranked()[which.value];
      if (!found) return null;
      const { ranks, cliques, difference: critical } = found, half = Math.ceil(ranks.length / 2), end = Math.max(2, Math.ceil(ranks.at(-1).rank));
      const bars = 0.8 + 0.45 * cliques.length, room = leftOf(ranks.map((p) => p.name)), left = room + 34, short = cutTo(room);
      const points = ranks.map((p, i) => ({ ...p, level: bars + (i < half ? i : ranks.length - 1 - i), side: i < half ? 1 : end }));
      const of = (side) => points.filter((p) => (p.side === 1) === (side < 0));
      const label = (side) => Plot.text(of(side), { x: "side", y: "level", dx: side * 8, textAnchor: side < 0 ? "end" : "start", text: (p) => (side < 0 ? `${short(p.name)}  ${p.rank.toFixed(2)}` : `${p.rank.toFixed(2)}  ${short(p.name)}`) });
      return {
        options: {
          height: 70 + 24 * (bars + half), marginLeft: left, marginRight: left, marginTop: 52, marginBottom: 8,
          x: { domain: [1, end], axis: "top", label: null, ticks: d3.range(1, end + 1), tickFormat: "d" }, y: { domain: [bars + half, 0], axis: null },
          marks: [
            Plot.ruleY([0]),
            Plot.link(points, { x1: "rank", x2: "rank", y1: () => 0, y2: "level", stroke: ink }),
            Plot.link(points, { x1: "rank", x2: "side", y1: "level", y2: "level", stroke: ink }),
            Plot.dot(points, { x: "rank", y: () => 0, fill: ink, symbol: shape, r: 5 }),
            label(-1), label(1),
            Plot.ruleY(cliques.map(([a, b], i) => ({ a: ranks[a].rank, b: ranks[b].rank, y: 0.5 + 0.45 * i })), { x1: "a", x2: "b", y: "y", strokeWidth: 5, insetLeft: -4, insetRight: -4 }),
            critical == null ? null : Plot.ruleY([1], { x1: 1, x2: Math.min(end, 1 + critical), y: () => 0, dy: -36, strokeWidth: 2, marker: "tick" }),
            critical == null ? null : Plot.text([1], { x: () => 1, y: () => 0, dy: -46, textAnchor: "start", text: () => `critical difference ${critical.toFixed(2)}` }),
          ],
        },
        caption: `${found.title}; ${found.footer}. Best on the left. ${critical == null ? "Without a test that rejects, nothing joins or divides the methods." : "A thick bar joins methods whose mean ranks differ by less than the critical difference."}`,
        header: ["method", "mean rank", "not told from the best"],
        rows: ranks.map((p) => [p.name, [p.rank.toFixed(2), p.rank], p.best == null ? "" : p.best ? "yes" : "no"]),
      };
    },
  });
}

function losses() {
  const all = Object.fromEntries(Object.entries(data.losses).map(([id, columns]) => [id, records(columns)]));
  return figure({
    id: "losses", title: "Training loss",
    draw(width) {
      const points = shown(all[cell.value] || []).map((p) => ({ ...p, label: p.name, name: p.method })), order = (group()?.points || []).map((p) => p.method);
      const series = d3.sort(d3.groups(points, (p) => p.name).filter(([, of]) => of.length > 1), ([name]) => order.indexOf(name));
      if (!series.length) return null;
      const columns = Math.max(1, Math.min(series.length, Math.floor(width / (width < 750 ? 165 : 200))));
      const placed = series.flatMap(([, of], i) => {
        const [low, high] = d3.extent(of, (p) => p.mean), scale = high > low ? high - low : 1;
        return of.map((p) => ({ ...p, fx: i % columns, fy: Math.floor(i / columns), at: (p.mean - low) / scale, low, high }));
      });
      const ends = series.map(([, of]) => placed.filter((p) => p.name === of[0].name)).map((of) => ({ ...of[0], first: of[0].mean, last: of.at(-1).mean }));
      const fxy = { fx: "fx", fy: "fy" };
      return {
        options: {
          height: 118 * Math.ceil(series.length / columns) + 50, marginTop: 22, marginLeft: 12, marginRight: 12,
          fx: { axis: null, padding: 0.08 }, fy: { axis: null, padding: 0.3 }, x: { label: "round", ticks: 4, nice: true }, y: { axis: null, inset: 4 },
          marks: [
            Plot.frame({ stroke: "var(--line)" }),
            Plot.lineY(placed, { x: "round", y: "at", z: "name", ...fxy, stroke: ink, strokeWidth: 2 }),
            Plot.text(ends, { ...fxy, frameAnchor: "top-left", text: (p) => cutTo(width / columns + 10)(p.name), dy: -14, fontWeight: 600 }),
            Plot.text(ends, { ...fxy, frameAnchor: "top-right", dx: -4, dy: 5, text: (p) => `${p.first.toPrecision(3)} → ${p.last.toPrecision(3)}`, fill: "var(--faint)", stroke: "var(--back)", strokeWidth: 3 }),
            tips(placed, "round", "at", (p) => `${p.label}, round ${p.round}\nloss ${p.mean.toPrecision(4)}`, fxy),
          ],
        },
        caption: `${titleOf()}. Mean local loss of each round over seeds, of each method the line with the most seeds. Losses of two methods have no common scale, so that each panel goes from the least to the greatest of its own; the numbers are the first and the last.`,
        header: ["method", "round", "loss"],
        rows: placed.map((p) => [p.label, exact(p.round, String), [p.mean.toPrecision(4), p.mean]]),
      };
    },
  });
}

function curves() {
  const all = Object.fromEntries(Object.entries(data.curves).map(([id, columns]) => [id, records(columns)]));
  const titles = {
    knn_acc: "k-NN %", linear_acc: "linear %", online_acc: "linear, online %",
    mixing: "mixing of clusters", consistent: "consistent share", client_identified: "clients identified",
    local_mi: "I(z1; z2 | s), bound", global_mi: "I(z1; z2), bound", label_mi: "I(h; y), bound",
    "encoder.norm": "norm of updates, encoder", "encoder.cosine": "cosine of updates, encoder", "encoder.diversity": "diversity of updates, encoder",
    "heads.norm": "norm of updates, heads", "heads.cosine": "cosine of updates, heads", "heads.diversity": "diversity of updates, heads",
  };
  const measured = new Set(Object.values(all).flat().map((p) => p.metric));
  const what = choice("curve", "Measure", () => Object.entries(titles).filter(([name]) => measured.has(name)));
  const timed = Object.values(all).flat().some((p) => p.hours != null);
  const over = choice("over", "Over", () => [["round", "rounds"], ["gb", "GB sent and received"], ...(timed ? [["hours", "simulated hours"]] : [])]);
  return figure({
    id: "curves", title: timed ? "Over rounds, bytes and hours" : "Over rounds and bytes", controls: [what, over],
    draw(width) {
      const of = new Map(chosen(group()?.points || []).map((p) => [p.label, p.name]));
      const measured = (all[cell.value] || []).filter((p) => of.has(p.name) && p.metric === what.value && p[over.value] != null);
      const points = measured.map((p) => ({ ...p, label: p.name, name: of.get(p.name) })), x = over.value, title = titles[what.value];
      if (!points.some((p) => p.round > 0)) return null;
      const share = what.value.endsWith("_acc"), number = share ? percent : plain;
      const names = unique(points), columns = Math.max(1, Math.min(names.length, Math.floor(width / (width < 750 ? 165 : 210))));
      const place = (name) => ({ fx: names.indexOf(name) % columns, fy: Math.floor(names.indexOf(name) / columns) });
      const placed = points.map((p) => ({ ...p, ...place(p.name) })), heads = names.map((name) => ({ name, ...place(name) })), fxy = { fx: "fx", fy: "fy" };
      const rounds = Math.max(...names.map((name) => new Set(points.filter((p) => p.name === name).map((p) => p.round)).size));
      return {
        options: {
          height: (width < 750 ? 125 : 150) * Math.ceil(names.length / columns) + 50, marginTop: 20, marginRight: 14, marginLeft: share ? 40 : 72,
          fx: { axis: null, padding: 0.08 }, fy: { axis: null, padding: 0.16 },
          x: { label: { gb: "GB, both directions", hours: "simulated hours" }[x] || "round", ticks: 4, nice: true }, y: { grid: true, percent: share, nice: true, label: title.replace(/ of updates.*/, ""), labelAnchor: "center", ticks: 5 },
          marks: [
            Plot.frame({ stroke: "var(--line)" }),
            Plot.lineY(points, { x, y: "mean", z: "name", stroke: "currentColor", strokeOpacity: 0.16 }),
            Plot.areaY(known(placed, "low"), { x, y1: "low", y2: "high", z: "name", ...fxy, fill: ink, fillOpacity: 0.22 }),
            Plot.lineY(placed, { x, y: "mean", z: "name", ...fxy, stroke: ink, strokeWidth: 2 }),
            dots(placed, x, "mean", { ...fxy, r: 3.5 }),
            Plot.text(heads, { ...fxy, frameAnchor: "top-left", text: (p) => cutTo(width / columns)(p.name), dy: -14, fontWeight: 600 }),
            tips(placed, x, "mean", (p) => `${p.name}, round ${p.round}\n${title} ${number(p.mean)}${p.low == null ? "" : ` [${number(p.low)}, ${number(p.high)}]`}\n${p.gb.toPrecision(3)} GB,${p.hours == null ? "" : ` ${p.hours.toPrecision(3)} h,`} ${p.n} seeds`, fxy),
          ],
        },
        caption: `${titleOf()}. One panel a method, all others in grey; means over seeds with 95 % t-intervals. Round 0 is the start.${share && rounds < 3 ? " These runs were evaluated before and after training only; evaluation.every adds points in between." : ""}`,
        header: ["method", "round", "GB", title, "low", "high", "seeds"],
        rows: points.map((p) => [p.name, exact(p.round, String), [p.gb.toPrecision(4), p.gb], exact(p.mean, number), exact(p.low, number), exact(p.high, number), exact(p.n, String)]),
      };
    },
  });
}

function correlationText(c) {
  const one = (value, low, high) => (value == null ? "–" : low == null ? value.toFixed(2) : `${value.toFixed(2)} [${low.toFixed(2)}, ${high.toFixed(2)}]`);
  return [one(c.pearson, c.pearson_low, c.pearson_high), one(c.spearman, c.spearman_low, c.spearman_high)];
}

function objective() {
  return figure({
    id: "objective", title: "Objective against accuracy",
    draw(width) {
      const series = shown(data.scatter[metric.value]?.[cell.value] || []), points = series.flatMap((s) => s.points.map(([x, y]) => ({ name: s.name, x, y })));
      if (points.length < 2) return null;
      return {
        names: unique(points),
        options: {
          height: Math.max(300, Math.min(460, width * 0.5)), x: { label: "objective (label-free)", grid: true, nice: true, inset: 8 }, y: { ...GRID(), inset: 8 },
          marks: [dots(points, "x", "y"), tips(points, "x", "y", (p) => `${p.name}\nobjective ${plain(p.x)}\n${measure().title} ${asText(p.y)}`)],
        },
        caption: `${titleOf()}. One symbol a run; tuning maximises the objective without seeing an accuracy. The numbers below are correlations with 95 % intervals.`,
        header: ["method", "runs", "Pearson", "Spearman"],
        rows: series.map((s) => [s.name, exact(s.n, String), ...correlationText(s)]),
      };
    },
  });
}

function clients() {
  const which = choice("partition", "Partition", () => data.partitions.map((partition, i) => [i, partition.title]));
  return figure({
    id: "clients", title: "Labels of clients", controls: [which],
    draw(width) {
      const first = data.partitions[which.value];
      if (!first) return null;
      const names = first.class_names, many = names.length > 40, left = leftOf(many ? ["000"] : names);
      const alike = data.partitions.slice(which.value).filter((partition) => `${partition.class_names}` === `${names}`), most = Math.max(...alike.map((partition) => partition.counts.length));
      const step = many ? 7 : 20, beside = Math.max(1, Math.min(alike.length, 4, Math.floor((width - left) / 210)));
      const across = Math.max(7, Math.min(30, (width - left - 20) / ((most + 2) * beside))), partitions = alike.slice(0, beside);
      const parts = partitions.map((partition) => partition.title.split(" · ")), head = parts.map((each) => each.filter((part) => !parts.every((other) => other.includes(part))).join(" · "));
      const points = partitions.flatMap((partition, i) => partition.counts.flatMap((row, client) => row.map((count, label) => ({ partition: i, client, label, count, of: d3.sum(row) })))).filter((p) => p.count);
      return {
        options: {
          width: left + 20 + across * (most + 2) * partitions.length, height: 84 + step * names.length, marginLeft: left, marginTop: 44, marginBottom: 40,
          fx: { domain: d3.range(partitions.length), axis: null, padding: 0.06 },
          x: { type: "point", domain: d3.range(most), label: "client", padding: 0.6, tickFormat: (i) => (across > 15 || i % 5 === 0 ? `${i}` : "") },
          y: { type: "point", domain: d3.range(names.length), label: null, padding: 0.6, tickSize: 0, tickFormat: (i) => (many ? (i % 10 ? "" : `${i}`) : names[i]) },
          r: { range: [0, Math.min(step, across) * 0.56] },
          marks: [
            Plot.frame({ stroke: "var(--line)" }),
            Plot.dot(points, { fx: "partition", x: "client", y: "label", r: "count", fill: COLOURS[0], fillOpacity: 0.85 }),
            Plot.text(partitions, { fx: (_, i) => i, frameAnchor: "top-left", dy: -4, lineAnchor: "bottom", text: (_, i) => head[i], lineWidth: (across * most) / 12, fontWeight: 600 }),
            tips(points, "client", "label", (p) => `client ${p.client}: ${p.count} of ${p.of} images\n${names[p.label]}`, { fx: "partition" }),
          ],
        },
        caption: `${partitions.map((partition, i) => `${i ? head[i] : partition.title}: ${partition.classes_per_client.toFixed(1)} classes a client${partition.counts.length < partition.num_clients ? `, the first ${partition.counts.length} of ${partition.num_clients.toLocaleString("en")} clients` : ""}`).join("; ")}. The area of a dot is the number of images; a class counts from 1 % of a client's images on.`,
        header: ["partition", "client", "class", "images"],
        rows: points.map((p) => [partitions[p.partition].title, exact(p.client, String), names[p.label], exact(p.count, String)]),
      };
    },
  });
}

const paramsOf = (trial) => Object.entries(trial.params).map(([k, v]) => `${k}=${typeof v === "number" ? +v.toPrecision(4) : v}`);

function tuning() {
  const which = choice("study", "Study", () => d3.sort(data.studies, (s) => -s.trials.length).map((s) => [s.study_id, `${s.study_id} · ${s.spec} · preset ${s.preset} · ${s.sampler} · ${s.trials.length} trials`]));
  const study = () => data.studies.find((each) => each.study_id === which.value), name = () => ({ name: study().spec });
  const score = (v) => exact(v, (x) => plain(x, 4));
  const history = figure({
    id: "history", title: "Tuning history",
    draw(width) {
      const trials = study()?.trials || [], done = known(trials, "objective"), { before } = study() || {};
      if (!done.length) return null;
      const floor = Math.min(before ?? Infinity, ...done.map((t) => t.objective));
      return {
        options: {
          height: Math.max(260, Math.min(340, width * 0.55)), x: { label: "trial", nice: true, tickFormat: "d", ticks: d3.ticks(0, trials.at(-1).number, 8).filter(Number.isInteger) }, y: { label: "objective", grid: true, nice: true },
          marks: [
            before == null ? null : Plot.ruleY([before], { strokeDasharray: "3 3" }),
            before == null ? null : Plot.text([before], { y: (v) => v, text: () => "start", frameAnchor: "right", textAnchor: "end", dy: -7, fill: "var(--faint)" }),
            Plot.lineY(known(trials, "best"), { x: "number", y: "best", curve: "step-after", stroke: "currentColor", strokeWidth: 1.5 }),
            Plot.dot(done, { x: "number", y: "objective", fill: ink(name()), symbol: shape(name()), r: 4.5, fillOpacity: 0.85 }),
            Plot.dot(trials.filter((t) => t.objective == null), { x: "number", y: () => floor, symbol: "times", stroke: "currentColor" }),
            tips(done, "number", "objective", (t) => `trial ${t.number}: ${plain(t.objective, 4)}\n${paramsOf(t).join("\n")}`),
          ],
        },
        caption: "One symbol a trial, the line is the best so far, the dashed line the mean of encoders before training. × marks a trial without an objective.",
        header: ["trial", "objective", "best so far", "status"],
        rows: trials.map((t) => [exact(t.number, String), score(t.objective), score(t.best), t.status]),
      };
    },
  });
  const parallel = figure({
    id: "parallel", title: "Parallel coordinates of trials",
    draw(width) {
      const trials = known(study()?.trials || [], "objective"), space = study()?.space || {};
      const watched = Object.keys(trials[0]?.watched || {}).filter((key) => key.endsWith("_acc"));
      const value = (t, key) => (key in t.params ? t.params[key] : t.watched[key] ?? t[key]), keys = [...Object.keys(space).filter((key) => trials.every((t) => key in t.params)), "objective", ...watched];
      if (trials.length < 2 || !(keys[0] in space)) return null;
      const dimensions = keys.map((key) => {
        const all = trials.map((t) => value(t, key)), { type, values: options = [], log, low, high } = space[key] || {};
        const scale = type === "choice" ? d3.scalePoint(options, [0, 1]).padding(options.length > 1 ? 0 : 0.5) : (log ? d3.scaleLog : d3.scaleLinear)(type ? [low, high] : d3.extent(all), [0, 1]);
        const text = (v) => (typeof v === "number" ? `${+v.toPrecision(3)}` : `${v}`);
        return { key, at: (t) => (value(t, key) == null && type !== "choice" ? null : scale(value(t, key))), ticks: (type === "choice" ? options : scale.domain()).map((v) => ({ key, at: scale(v), text: key.endsWith("_acc") ? percent(v) : text(v) })) };
      });
      const shade = d3.scaleSequential(d3.extent(trials, (t) => t.objective), (v) => d3.interpolateCividis(0.08 + 0.84 * v));
      const points = [...trials].sort((a, b) => a.objective - b.objective).flatMap((t) => dimensions.map(({ key, at }) => ({ key, at: at(t), number: t.number, trial: t, best: t.number === study().best })));
      return {
        options: {
          height: 300, marginLeft: 60, marginRight: 60, marginTop: 30, marginBottom: 20, x: { type: "point", domain: keys, padding: 0.2, axis: "top", label: null, tickSize: 0, tickFormat: (key) => key.replace(/^[a-z]+\./, "") }, y: { axis: null, domain: [0, 1] },
          marks: [
            Plot.ruleX(keys, { stroke: "var(--line)" }),
            Plot.line(points, { x: "key", y: "at", z: "number", stroke: (p) => shade(p.trial.objective), strokeWidth: (p) => (p.best ? 4 : 1.6) }),
            Plot.text(dimensions.flatMap((d) => d.ticks), { x: "key", y: "at", text: "text", dx: 6, textAnchor: "start", stroke: "var(--back)", strokeWidth: 3, fill: "currentColor" }),
            tips(points, "key", "at", (p) => `trial ${p.number}: ${plain(p.trial.objective, 4)}\n${paramsOf(p.trial).join("\n")}`),
          ],
        },
        caption: "One line a trial, yellow for high objectives, blue for low ones; the thick one is the best.",
        header: ["trial", ...keys], rows: trials.map((t) => [exact(t.number, String), ...keys.map((key) => (typeof value(t, key) === "number" ? [`${+value(t, key).toPrecision(4)}`, value(t, key)] : `${value(t, key) ?? (key in t.params ? null : "")}`))]),
      };
    },
  });
  const watched = figure({
    id: "watched", title: "Objective against accuracy of trials",
    draw(width) {
      const series = (study()?.correlations || []).filter((c) => c.n >= 3 && c.metric.endsWith("_acc"));
      const points = series.flatMap((c) => study().trials.filter((t) => t.objective != null && t.watched[c.metric] != null).map((t) => ({ x: t.objective, y: t.watched[c.metric], number: t.number, metric: c.metric })));
      if (!points.length) return null;
      return {
        options: {
          height: Math.max(260, Math.min(340, width * 0.55)), x: { label: "objective (label-free)", grid: true, nice: true }, y: { label: series.map((c) => c.metric).join(", ") + " %", percent: true, grid: true, nice: true }, symbol: { legend: series.length > 1 },
          marks: [Plot.dot(points, { x: "x", y: "y", fill: ink(name()), symbol: series.length > 1 ? "metric" : shape(name()), r: 4.5 }), tips(points, "x", "y", (p) => `trial ${p.number}\nobjective ${plain(p.x)}\n${p.metric} ${percent(p.y)}`)],
        },
        caption: `The search never saw this accuracy. ${series.map((c) => { const [pearson, spearman] = correlationText(c); return `${c.metric}: Pearson ${pearson}, Spearman ${spearman} over ${c.n} trials (95 % intervals).`; }).join(" ")}`,
        header: ["trial", "metric", "objective", "%"], rows: points.map((p) => [exact(p.number, String), p.metric, score(p.x), exact(p.y, percent)]),
      };
    },
  });
  return { which, study, figures: [history, parallel, watched] };
}

function angles() {
  const title = (g) => `${g.title} · ${g.setting} · ${g.run_id.slice(0, 8)}`;
  const run = choice("run", "Run", () => data.geometry.map((g, i) => [i, title(g)])), kind = choice("angles", "Angles", () => Object.keys(data.geometry[0]?.angles || {}).sort().map((name) => [name, name]));
  const mapped = choice("map", "Run", () => data.geometry.filter((g) => g.map).map((g, i) => [i, title(g)]));
  return [figure({
    id: "angles", title: "Angles between classes", controls: [run, kind],
    draw() {
      const found = data.geometry[run.value];
      if (!found) return null;
      const { edges, counts, median } = found.angles[kind.value], bars = counts.map((count, i) => ({ count, from: edges[i], to: edges[i + 1] }));
      return {
        options: {
          height: 320, x: { label: "angle between mean features of two classes, degrees" }, y: { label: "pairs of classes", grid: true },
          marks: [Plot.rectY(bars, { x1: "from", x2: "to", y: "count", fill: COLOURS[0], tip: true }), Plot.ruleX(median == null ? [] : [median], { strokeDasharray: "4 3" }), Plot.ruleY([0])],
        },
        caption: `${found.title}, ${found.setting}.` + (median == null ? "" : ` The dashed line is the median, ${median.toFixed(1)} degrees; 90 is orthogonal.`),
        header: ["from", "to", "pairs"], rows: bars.filter((bar) => bar.count).map((bar) => [bar.from, bar.to, bar.count].map((v) => exact(v, String))),
      };
    },
  }), figure({
    id: "map", title: "Map of test features", controls: [mapped],
    draw() {
      const found = data.geometry.filter((g) => g.map)[mapped.value];
      if (!found) return null;
      const { points, labels, class_names: names } = found.map;
      const look = (name) => [COLOURS[names.indexOf(name) % COLOURS.length], SYMBOLS[names.indexOf(name) % SYMBOLS.length]];
      const places = points.map(([x, y], i) => ({ x, y, class: names[labels[i]] }));
      return {
        names, look,
        options: {
          height: 420, x: { axis: null, inset: 12 }, y: { axis: null, inset: 12 },
          marks: [Plot.dot(places, { x: "x", y: "y", fill: (p) => look(p.class)[0], symbol: (p) => look(p.class)[1], r: 3, title: "class", tip: true })],
        },
        caption: `${found.title}, ${found.setting}. t-SNE of features of test images; distances between clusters mean little. fedbench export ${found.run_id.slice(0, 8)} encoder.pt2 writes its encoder.`,
        header: ["x", "y", "class"], rows: points.map(([x, y], i) => [[plain(x), x], [plain(y), y], names[labels[i]]]),
      };
    },
  })];
}
