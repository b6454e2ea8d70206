"use strict";
// The page: sections in order, each only where there is something to show.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main"), nav = document.getElementById("nav");
  const runs = records(data.runs);
  const views = [];

  function section(id, title, ...children) {
    if (children.every((child) => child == null)) return;
    nav.append(el("a", { href: `#${id}` }, title));
    main.append(el("section", { "aria-labelledby": id }, el("h2", { id }, title), ...children));
  }
  const text = (words) => el("p", { class: "legend" }, words);
  const drawn = (view) => { if (view) views.push(view); return view && view.figure; };
  const WORDS = new Set(["method", "notes", "best"]);
  const asColumns = (header) => header.map((title) => ({ title, num: !WORDS.has(title) }));

  function overview() {
    const count = (name) => new Set(runs.map((run) => run[name])).size;
    const sum = (name) => runs.reduce((total, run) => total + (run[name] || 0), 0);
    const bad = runs.filter((run) => run.status !== "ok");
    const facts = [
      [runs.length, "run", "runs"],
      [count("method"), "method", "methods"],
      [data.metrics.length ? data.boards[data.metrics[0].name].groups.length : 0, "comparability class", "comparability classes"],
      [data.studies.length, "tuning study", "tuning studies"],
      [(sum("wall_seconds") / 3600).toFixed(2), "hours of runs"],
      [((sum("bytes_up") + sum("bytes_down")) / 1e9).toFixed(2), "GB between clients and servers"],
      [bad.length, "run diverged or failed", "runs diverged or failed"],
    ];
    main.append(el("ul", { class: "facts" }, ...facts.map(([value, one, many]) => el("li", {}, el("b", {}, value.toLocaleString("en")), many && value !== 1 ? many : one))));
    main.append(...data.problems.map((problem) => el("p", { class: "warning", role: "alert" }, `Not read: ${problem}`)));
    if (!runs.length) main.append(el("p", {}, "The store holds no runs yet."));
  }

  function boards() {
    const holder = el("div", {});
    const metric = choice("Ranked by", data.metrics.map((m) => [m.name, m.title]), fill);
    function fill() {
      const board = data.boards[metric.value];
      const header = [...new Set(board.groups.flatMap((group) => group.header))];
      const order = data.metrics.find((m) => m.name === metric.value).title;
      header.sort((a, b) => place(a, order) - place(b, order));
      const groups = board.groups.map((group) => ({
        title: group.title, note: group.note,
        rows: group.rows.map((row, i) => ({ best: group.best[i], cells: header.map((name) => row[group.header.indexOf(name)] ?? "") })),
      }));
      const below = el("div", {}), several = board.across.length > 1;
      const cells = choice("Cells", board.across.map((each, i) => [i, each.title]), () => below.replaceChildren(...over(board.across[cells.value], several)));
      holder.replaceChildren(table({ label: "Leaderboard", columns: asColumns(header), groups }));
      if (board.across.length) {
        below.replaceChildren(...over(board.across[0], several));
        holder.append(el("h3", {}, "Over several cells"), ...(cells.node ? [el("div", { class: "controls" }, cells.node)] : []), below);
      }
    }
    function over(each, several) {
      const rows = each.rows.map((cells, i) => ({ cells: cells.map(asNumber), best: each.best[i] }));
      return [el("p", { class: several ? "legend printed" : "legend" }, each.title), table({ label: each.title, columns: asColumns(each.header), groups: [{ rows }] }), text(each.footer)];
    }
    if (!data.metrics.length) return [];
    fill();
    return [
      text("Ranks are within one comparability class only: same data, partition, budget, encoder and probe. ± is half of the 95 % t-interval over seeds; fewer than 3 seeds are only described. Shaded and marked *: the best of its class, and all that a paired t-test over seeds (Holm, 5 %) cannot tell from it. Published numbers stand beside rows of exactly the published setting and are not ranked. The exact value is in the tooltip."),
      el("div", { class: "controls" }, metric.node), holder,
    ];
  }

  const ORDER = ["rank", "method", "", "best", "seeds", "gain", "linear %", "k-NN %", "objective", "area %", "MB up", "MB down", "% / GB", "per GB", "minutes", "published", "notes"];
  const place = (name, metric) => (name === metric ? 2 : ORDER.includes(name) ? ORDER.indexOf(name) : 8.5);
  const asNumber = (cell) => (cell !== "" && !Number.isNaN(Number(cell)) ? [cell, Number(cell)] : cell);

  const SHOWN = {
    row_id: ["run", "code"], measured_from: ["measured from", "code"], status: ["status"], method: ["method"], preset: ["preset"], dataset: ["data"], partition: ["partition"],
    alpha: ["alpha", String], num_clients: ["clients", String], participation: ["participation", String], num_rounds: ["rounds", String],
    local_epochs: ["epochs", String], seed: ["seed", String], linear_acc: ["linear %", percent], knn_acc: ["k-NN %", percent],
    objective: ["objective", plain], untrained_linear_acc: ["untrained linear %", percent], untrained_knn_acc: ["untrained k-NN %", percent],
    collapsed: ["collapsed"], bytes_up: ["MB up", mega], bytes_down: ["MB down", mega],
    revealing_messages: ["show single images", String], epsilon: ["ε", (v) => v.toPrecision(3)], epsilon_of: ["ε of"], wall_seconds: ["seconds", (v) => v.toFixed(1)],
    peak_memory_bytes: ["peak MB", mega], device: ["device"], grid: ["grid"], study_id: ["study"], started_at: ["started"], error: ["error"],
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

  function machines() {
    const header = ["hardware", "device", "code", "versions", "runs", "hours", "GB", "first", "last"];
    const rows = data.machines.map((m) => ({ cells: [m.hardware, m.device, m.code, m.versions, [`${m.runs}`, m.runs], [m.hours.toFixed(2), m.hours], [m.gb.toFixed(2), m.gb], m.first, m.last] }));
    return table({ label: "Machines", columns: header.map((title) => ({ title, num: ["runs", "hours", "GB"].includes(title) })), groups: [{ rows }] });
  }

  function study(each) {
    const watched = [...new Set(each.trials.flatMap((trial) => Object.keys(trial.watched)))];
    const score = (value) => (value == null ? "" : [value.toFixed(4), value]);
    const shown = (name, value) => (value == null ? "" : name.endsWith("_acc") ? [percent(value), value] : score(value));
    const header = ["trial", "objective", ...watched, "seconds", "seeds", "values", "status", "error"];
    const rows = each.trials.map((trial) => ({
      best: trial.number === each.best,
      cells: [[`${trial.number}`, trial.number], score(trial.objective), ...watched.map((name) => shown(name, trial.watched[name])),
        trial.seconds == null ? "" : [trial.seconds.toFixed(1), trial.seconds], [`${trial.seeds}`, trial.seeds],
        Object.entries(trial.params).map(([k, v]) => `${k}=${typeof v === "number" ? +v.toPrecision(4) : v}`).join(" "), trial.status, trial.error || ""],
    }));
    const cost = `${each.trials.length} trials, ${(each.seconds / 3600).toFixed(2)} hours, ${(each.num_bytes / 1e9).toFixed(2)} GB`;
    const told = each.correlations.map((c) => {
      const [pearson, spearman] = correlationText(c);
      return text(`Objective against ${c.metric}, which the search never saw: Pearson ${pearson}, Spearman ${spearman} over ${c.n} trials (95 % intervals).`);
    });
    const words = ["values", "status", "error"];
    return [
      el("h3", {}, `${each.study_id} · ${each.spec} · preset ${each.preset} · ${each.sampler}`), text(cost + (each.finished_at ? "" : "; not finished")), ...told,
      ...each.correlations.filter((c) => c.n >= 3).map((c) => {
        const points = each.trials.filter((t) => t.objective != null && t.watched[c.metric] != null).map((t) => ({ name: each.spec, x: t.objective, y: t.watched[c.metric] }));
        return drawn(chart({ label: `Trials of ${each.study_id}`, controls: [], draw: () => ({ options: points.length ? scatterOptions(points, c.metric) : null, caption: "One mark a trial.", header: [], rows: [] }) }));
      }),
      table({ label: `Trials of ${each.study_id}`, columns: header.map((title) => ({ title, num: !words.includes(title) })), groups: [{ rows }] }),
    ];
  }

  function papers() {
    const cells = records(data.papers), groups = new Map();
    for (const cell of cells) {
      const title = [cell.table, cell.dataset, cell.setting, cell.measured].join(" · ");
      if (!groups.has(title)) groups.set(title, { title, rows: [] });
      groups.get(title).rows.push({ cells: [
        cell.rank == null ? "" : [`${cell.rank}`, cell.rank], cell.method, cell.here || "", [cell.printed, Number(cell.printed)],
        cell.spread == null ? "" : [percent(cell.spread), cell.spread], cell.seeds == null ? "" : [`${cell.seeds}`, cell.seeds], cell.note,
      ] });
    }
    const header = ["rank", "method", "here", "printed", "±", "seeds", "note"], words = ["method", "here", "note"];
    return [
      text("As printed, in percent but for the partition statistics of Orchestra's table 4. The three papers differ in splits, norms and probes: ranks are within one table and setting, never across papers, and none of these numbers is ranked with those above."),
      table({ label: "Published numbers", columns: header.map((title) => ({ title, num: !words.includes(title) })), groups: [...groups.values()], limit: 100 }),
    ];
  }

  overview();
  section("leaderboard", "Leaderboard", ...boards());
  const swept = data.metrics.some((m) => data.sweeps[m.name].length);
  section("axes", "Along the axes", swept ? drawn(sweepChart(data)) : null);
  section("curves", "Over rounds and bytes", drawn(curveChart(data)));
  section("objective", "Objective against accuracy", drawn(scatterChart(data)));
  section("geometry", "Angles and maps", drawn(angleChart(data)), drawn(mapChart(data)));
  section("studies", "Tuning studies", ...data.studies.flatMap(study));
  section("runs", "What ran", ...(runs.length ? [machines(), el("h3", {}, "Runs"), runTable()] : []));
  section("papers", "Published tables", ...papers());

  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => {
    if (theme.value) document.documentElement.dataset.theme = theme.value;
    else delete document.documentElement.dataset.theme;
  });
  for (const view of views) view.redraw();
  document.documentElement.dataset.ready = "";
})();
