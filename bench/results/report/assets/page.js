"use strict";
// The page: choices, pictures, then tables, each only where there is something to show.

(() => {
  const main = document.getElementById("main"), nav = document.getElementById("nav");
  const runs = records(data.runs);

  // A part that is read at once, or one that is opened on demand.
  const section = (id, title, ...children) => add(id, title, children, (head) => el("section", { class: id, "aria-labelledby": id }, head, ...children));
  const part = (id, title, ...children) => add(id, title, children, (head) => el("details", { class: `part ${id}` }, el("summary", {}, head), ...children));
  function add(id, title, children, node) {
    const there = children.filter((child) => child != null), head = el("h2", { id, tabindex: "-1" }, title);
    if (!there.length) return;
    const link = el("a", { href: `#${id}`, onclick: (event) => { event.preventDefault(); choose("at", id); go(id); } }, title), whole = node(head);
    nav.append(link);
    main.append(whole);
    // No heading without content: a figure hides where the cell that is chosen has nothing for it.
    const empty = (child) => child.hidden || (child.className === "pair" && [...child.children].every(empty));
    followers.push(() => { whole.hidden = link.hidden = there.every(empty); });
  }
  function go(id) {
    const head = document.getElementById(id), fold = head?.closest("details.part");
    if (fold) fold.open = true;
    head?.scrollIntoView();
    head?.focus({ preventScroll: true });
  }
  const text = (words) => (words ? el("p", { class: "lead" }, words) : null);
  const pair = (...figures) => el("div", { class: "pair" }, ...figures);
  const WORDS = new Set(["method", "notes", "best", "ties"]);
  const asColumns = (header) => header.map((title) => ({ title, num: !WORDS.has(title) }));

  function overview() {
    const count = (name) => new Set(runs.map((run) => run[name])).size;
    const sum = (name) => runs.reduce((total, run) => total + (run[name] || 0), 0);
    const short = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 2 : 0 });
    const bad = runs.filter((run) => run.status !== "ok");
    const facts = [
      [runs.length, "run", "runs"],
      [count("method"), "method", "methods"],
      [data.metrics.length ? board().groups.length : 0, "cell", "cells"],
      [data.studies.length, "tuning study", "tuning studies"],
      [short(sum("wall_seconds") / 3600), "hours of runs"],
      [short((sum("bytes_up") + sum("bytes_down")) / 1e9), "GB between clients and servers"],
      [bad.length, "run diverged or failed", "runs diverged or failed"],
    ].filter(([value]) => value && value !== "0");
    main.append(el("ul", { class: "facts" }, ...facts.map(([value, one, many]) => el("li", {}, el("b", {}, value.toLocaleString("en")), many && value !== 1 ? many : one))));
    main.append(...data.problems.map((problem) => el("p", { class: "warning", role: "alert" }, `Not read: ${problem}`)));
    if (!runs.length) main.append(el("p", {}, "The store holds no runs yet."));
  }

  // The bar of choices: metric, cell, methods. Its list of methods is the key to symbols and colours.
  function bar() {
    const names = Object.keys(data.styles), summary = el("summary");
    const boxes = names.map((name) => el("input", { type: "checkbox", value: name, onchange: () => pick() }));
    const all = (checked) => { for (const box of boxes) box.checked = checked; pick(); };
    const pick = () => choose("hide", ...boxes.filter((box) => !box.checked).map((box) => box.value));
    followers.unshift(() => {
      for (const box of boxes) box.checked = seen(box.value);
      summary.textContent = `Lines shown: ${boxes.filter((box) => box.checked).length} of ${names.length}`;
    });
    const list = el("details", { class: "methods" }, summary, el("div", { class: "list" },
      el("div", { class: "controls" }, el("button", { type: "button", onclick: () => all(true) }, "All"), el("button", { type: "button", onclick: () => all(false) }, "None")),
      ...names.map((name, i) => el("label", {}, boxes[i], legend([name])))));
    addEventListener("click", (event) => { if (!list.contains(event.target)) list.open = false; });
    addEventListener("keydown", (event) => { if (event.key === "Escape" && list.open) { list.open = false; summary.focus(); } });
    const copy = el("button", { type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(location.href); copy.textContent = "Copied"; } catch { copy.textContent = "Copy it from the address bar"; }
      setTimeout(() => { copy.textContent = "Copy link"; }, 2000);
    } }, "Copy link");
    const missing = el("p", { class: "warning", role: "status" });
    followers.push(() => {
      const gone = choices.map((each) => each.missing()).filter(Boolean);
      missing.hidden = !gone.length;
      missing.textContent = `Not on this page, so that the first of the list is shown: ${gone.join("; ")}.`;
    });
    main.append(missing, el("div", { class: "bar", role: "group", "aria-label": "What is shown" }, metric.node, cell.node, list, copy));
  }

  function boards() {
    const holder = el("div", {});
    const cells = choice("across", "Cells", () => d3.sort(board().across.map((each, i) => [i, each.title]), ([i]) => -board().across[i].ranks.length));
    const mark = (standing) => ({ first: "best", alike: "best", unclear: "unclear" })[standing];
    followers.push(() => {
      if (closed(holder)) return;
      const header = [...new Set(board().groups.flatMap((each) => each.header))];
      header.sort((a, b) => place(a, measure().title) - place(b, measure().title));
      const groups = board().groups.map((each) => ({
        title: each.title, note: [each.power, each.note].filter(Boolean).join(" "),
        rows: each.rows.map((row, i) => ({ mark: mark(each.standings[i]), name: each.points[i].name, cells: header.map((name) => asNumber(row[each.header.indexOf(name)] ?? "", name)) })).filter((row) => seen(row.name)),
      }));
      const over = board().across[cells.value];
      const rows = over?.rows.map((row, i) => ({ cells: row.map((cell, j) => asNumber(cell, over.header[j])), mark: over.best[i] ? "best" : null })).filter((row) => seen(row.cells[0]));
      holder.replaceChildren(table({ label: "Leaderboard", columns: asColumns(header), groups }), ...(over ? [
        el("h3", {}, "Over several cells"), el("div", { class: "controls" }, cells.node), text(over.title),
        table({ label: over.title, columns: asColumns(over.header), groups: [{ rows }] }),
        ...over.footnotes.map((each, i) => text(`${i + 1}: ${each}`)), text(over.footer),
      ] : []));
    });
    return [
      text("Ranks are within one cell only: same data, partition, budget, encoder and probe. ± is half of the 95 % t-interval over seeds; fewer than 3 seeds are only described. Shaded and marked *: the best of its cell, and all that a t test over seeds (unpaired, Holm, 5 %) does not tell from it; lines with one letter tie. ?: not told from the best either, but the seeds are too few for the mark to mean anything. At chance: a term of the loss ended within a tenth of what a net without information reaches; such a run does not test its method. Published numbers stand beside rows of exactly the published setting and are not ranked."),
      holder,
    ];
  }

  // The columns of the board in their order; a heading that another metric has is that of the metric.
  const place = (name, first) => { const at = data.columns.indexOf(name); return name === first ? 2 : at < 0 ? 8.5 : at; };
  const asNumber = (cell, name) => {
    const value = WORDS.has(name) ? NaN : parseFloat(cell.replaceAll(",", ""));
    return Number.isNaN(value) ? cell : [cell, value];
  };

  const SHOWN = {
    row_id: ["run", "code"], measured_from: ["measured from", "code"], status: ["status"], method: ["method"], preset: ["preset"], dataset: ["data"], partition: ["partition"],
    alpha: ["alpha", String], num_clients: ["clients", String], participation: ["participation", String], num_rounds: ["rounds", String],
    local_epochs: ["epochs", String], seed: ["seed", String], linear_acc: ["linear %", percent], knn_acc: ["k-NN %", percent],
    objective: ["objective", plain], untrained_linear_acc: ["start linear %", percent], untrained_knn_acc: ["start k-NN %", percent],
    collapsed: ["collapsed"], at_chance: ["at chance"], bytes_up: ["MB up", mega], bytes_down: ["MB down", mega],
    revealing_messages: ["show single images", String], epsilon: ["ε", (v) => v.toPrecision(3)], epsilon_of: ["ε of"], wall_seconds: ["seconds", (v) => v.toFixed(1)],
    peak_memory_bytes: ["peak MB", mega], device: ["device"], hardware: ["hardware"], package_version: ["fedbench"], grid: ["grid"], study_id: ["study"], started_at: ["started"], error: ["error"],
  };
  function mega(value) { return (value / 1e6).toFixed(1); }

  function runTable() {
    const names = Object.keys(SHOWN).filter((name) => runs.some((run) => run[name] != null && run[name] !== false));
    const columns = names.map((name) => ({ title: SHOWN[name][0], num: typeof SHOWN[name][1] === "function", code: SHOWN[name][1] === "code" }));
    const cells = (run) => names.map((name, i) => {
      const value = run[name];
      if (value == null) return "";
      return columns[i].num ? [SHOWN[name][1](value), value] : value === true ? "yes" : value === false ? "" : value;
    });
    return table({ label: "Runs", columns, groups: [{ rows: runs.map((run) => ({ cells: () => cells(run) })) }], limit: 100 });
  }

  function studies() {
    if (!data.studies.length) return [];
    const { which, study, figures } = tuning(), holder = el("div", {}), words = ["values", "status", "error"];
    followers.push(() => {
      if (closed(holder)) return;
      const each = study(), watched = [...new Set(each.trials.flatMap((trial) => Object.keys(trial.watched)))];
      const score = (value) => (value == null ? "" : [value.toFixed(4), value]);
      const value = (name, found) => (found == null ? "" : name.endsWith("_acc") ? [percent(found), found] : score(found));
      const header = ["trial", "objective", ...watched, "seconds", "seeds", "values", "status", "error"];
      const rows = each.trials.map((trial) => ({
        mark: trial.number === each.best ? "best" : null,
        cells: [exact(trial.number, String), score(trial.objective), ...watched.map((name) => value(name, trial.watched[name])),
          trial.seconds == null ? "" : [trial.seconds.toFixed(1), trial.seconds], exact(trial.seeds, String),
          paramsOf(trial).join(" "), trial.status, trial.error || ""],
      }));
      const spent = `${each.study_id}: ${each.trials.length} trials, ${(each.seconds / 3600).toFixed(2)} hours, ${(each.num_bytes / 1e9).toFixed(2)} GB${each.finished_at ? "" : "; not finished"}.`;
      holder.replaceChildren(text(spent), ...each.cautions.map((caution) => el("p", { class: "warning" }, caution)),
        el("details", {}, el("summary", {}, "Trials"), table({ label: `Trials of ${each.study_id}`, columns: header.map((title) => ({ title, num: !words.includes(title) })), groups: [{ rows }] })));
    });
    return [el("div", { class: "controls" }, which.node), pair(...figures), holder];
  }

  function papers() {
    const cells = records(data.papers), groups = new Map();
    for (const cell of cells) {
      const title = [cell.source, cell.dataset, cell.setting, cell.probe || cell.metric].join(" · ");
      if (!groups.has(title)) groups.set(title, { title, rows: [] });
      groups.get(title).rows.push({ cells: [
        cell.method, cell.spec || "", [cell.printed, Number(cell.printed)],
        cell.spread == null ? "" : [percent(cell.spread), cell.spread], exact(cell.n_seeds, String), cell.note,
      ] });
    }
    const header = ["method", "here", "printed", "±", "seeds", "note"], words = ["method", "here", "note"];
    return [
      text("As printed, in percent but for the partition statistics of Orchestra's table 4. The papers differ in splits, norms and probes: compare within one table and setting, never across papers; none of these numbers is ranked with those above."),
      table({ label: "Published numbers", columns: header.map((title) => ({ title, num: !words.includes(title) })), groups: [...groups.values()], limit: 100 }),
    ];
  }

  const some = data.metrics.length > 0;
  overview();
  if (some) bar();
  section("methods", "Board", ...(some ? [ranking()] : []));
  section("axes", "Over an axis", ...(some ? [axis()] : []));
  section("training", "Training", ...(some ? [losses()] : []));
  part("leaderboard", "Tables", ...(some ? boards() : []));
  part("cost", "Cost and rounds", ...(some ? [pair(cost("bytes", "Accuracy against bytes", "mb", "MB, both directions"), cost("minutes", "Accuracy against minutes", "minutes", "minutes of a run")), curves()] : []));
  part("cells", "All cells", ...(some ? [heatmap(), difference()] : []));
  part("objectives", "Objective", ...(some ? [objective()] : []));
  part("images", "Data", ...data.pictures.map(({ title, picture }) => el("figure", {}, el("img", { src: picture, alt: `Images of ${title}` }), el("figcaption", {}, `${title}; of each class a training image, below it a test image`))));
  part("partitions", "Clients", ...(runs.length ? [clients(), ...data.partitions_not_shown.map(text)] : []));
  part("geometry", "Angles and maps", data.geometry.length ? pair(...angles()) : null);
  part("studies", "Tuning", ...studies());
  part("runs", "What ran", ...(runs.length ? [runTable()] : []));
  part("papers", "Published numbers", ...papers());

  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => choose("theme", ...(theme.value ? [theme.value] : [])));
  followers.unshift(() => {
    theme.value = link.get("theme") || "";
    if (theme.value) document.documentElement.dataset.theme = theme.value;
    else delete document.documentElement.dataset.theme;
  });
  follow();
  if (link.has("at")) go(link.get("at"));
  document.documentElement.dataset.ready = "";
})();
