// Figures, filters and target slider of the page, drawn from the JSON in #study-data. No figure or answer is computed
// here: the recommendation at each target was made when the report was written. Texts of the study reach the page as
// text nodes and attributes only.
(() => {
  const source = document.getElementById("study-data");
  if (!source) return;
  const data = JSON.parse(source.textContent),
    { axes, cells, keys, metric, targets } = data;
  const { DASHES, Figure, css, element, measured, save, three } = drawing;
  const [WORKERS, BATCH, RATE] = [0, 1, 2],
    every = [...cells.label.keys()];
  const rates = ["samples_per_second", "tokens_per_second"].filter((key) => key in cells);
  // Of the curves: words, the columns of a curve, solid and dotted, and whether a target is one of their values.
  const TITLE = metric.named_by_others ? metric.name : `test ${metric.name}`;
  const CLOCK = data.evaluation_timed ? "seconds" : "training seconds, evaluation left out"; // others may time it
  const METRIC = { name: "metric", words: TITLE, columns: [`test_${metric.name}`], targeted: true };
  const quantities = [
    METRIC,
    { name: "loss", words: "train and test loss", columns: ["test_loss", "train_loss"], targeted: metric.name === "loss" },
    { name: "rate", words: "learning rate", columns: ["learning_rate"], targeted: false },
  ].filter(({ columns }) => data.curves.some((curve) => columns.some((key) => (curve[key] || []).some(measured))));
  const MEMORY = "study-view " + data.study_id;
  // MLflow shows the page in a frame without an origin, which may neither save files nor open windows.
  const sandboxed = self !== top && self.origin === "null";
  document.documentElement.classList.toggle("sandboxed", sandboxed);

  // ---- state ----
  // Kept for the next load: what the reader has chosen, by value. Positions may be others then.
  const kept = (() => {
    try {
      return JSON.parse(sessionStorage.getItem(MEMORY)) || {};
    } catch {
      return {}; // storage is switched off
    }
  })();
  const answered = data.answered ?? targets.length - 1;
  const state = {
    filters: kept.filters || {},
    target: targets.findIndex((answer) => answer.target === kept.target),
    chosen: cells.label.indexOf(kept.chosen),
    over: kept.over === "epochs" ? "epochs" : "seconds",
    quantity: kept.quantity,
  };
  if (state.target < 0) state.target = answered;
  if (state.chosen < 0) state.chosen = null;
  const drawnQuantity = () => quantities.find((each) => each.name === state.quantity) || quantities[0] || METRIC;
  const asked = () => targets[state.target] || null;
  const value = (cell, key) => JSON.stringify(cells.params[cell][key]);
  const shown = (cell) =>
    keys.every((key, place) => !(key.key in state.filters) || value(cell, place) === state.filters[key.key]);
  const change = (part) => {
    Object.assign(state, part);
    const moved = state.target !== answered;
    const keep = { ...state, target: moved ? asked().target : null, chosen: cells.label[state.chosen] ?? null };
    try {
      sessionStorage.setItem(MEMORY, JSON.stringify(keep));
    } catch {
      /* storage is switched off */
    }
    update();
  };

  // ---- texts ----
  const metricText = (number) => (metric.share ? number.toFixed(3) : three(number));
  const range = (low, high, text) => (low === null || low === high ? "" : ` (${text(low)} to ${text(high)})`);
  const seconds = (number) => (number === null ? "–" : `${three(number)} s`);
  const gibibytes = (bytes) => bytes / 2 ** 30;
  const work = (cell) => (asked().seconds[cell] === null ? null : asked().seconds[cell] * cells.params[cell][WORKERS]);

  function facts(cell) {
    const lines = [],
      answer = asked(),
      [ended, planned] = cells.seeds[cell];
    lines.push(cells.lent[cell] ? "trained with other workers" : `${ended} of ${planned} seeds ended`);
    const known = cells.metric[cell];
    if (known) lines.push(`${TITLE} ${metricText(known[0])}${range(known[1], known[2], metricText)}`);
    if (answer) {
      const time = answer.seconds[cell];
      lines.push(
        time === null
          ? `no time to ${answer.target}: ${answer.reached[cell]} of ${answer.seeds[cell]} seeds reached it` +
            (answer.met_last[cell] ? `, ${answer.met_last[cell]} met it at the last evaluation` : "")
          : `${seconds(time)} to ${answer.target}${range(answer.low[cell], answer.high[cell], three)}`,
      );
      if (time !== null)
        lines.push(
          `${three(work(cell))} worker-seconds` +
            (data.price === null ? "" : `, cost ${three((work(cell) / 3600) * data.price)}`),
        );
    }
    if (cells.epoch_seconds[cell] !== null) lines.push(`${three(cells.epoch_seconds[cell])} s an ${data.period}`);
    for (const key of rates)
      if (cells[key][cell] !== null) lines.push(`${three(cells[key][cell])} ${key.replace("_per_second", "/s")}`);
    if (cells.speedup[cell] !== null) lines.push(`speed-up ${three(cells.speedup[cell])}`);
    if (cells.memory[cell] !== null) lines.push(`${three(gibibytes(cells.memory[cell]))} GiB at most a worker`);
    if (cells.flags[cell].length) lines.push(`† ${cells.flags[cell].join(", ").replaceAll("_", " ")}`);
    return lines;
  }

  const rolesOf = (cell) =>
    asked()
      ? Object.entries(asked().roles)
          .filter(([, place]) => place === cell)
          .map(([role]) => role)
      : [];

  function runsAddress(cell) {
    const filter = !sandboxed && data.runs && data.runs.filters[cell];
    return filter && `${data.runs.page}?searchFilter=${encodeURIComponent(filter)}&workflowType=machine_learning`;
  }

  // ---- the figures ----
  const lookOf = (cell) => data.sizes.find(({ workers }) => workers === cells.params[cell][WORKERS]);
  const view = {
    title: (cell) => cells.label[cell],
    facts,
    roles: rolesOf,
    colour: (cell) => css(`--${lookOf(cell).colour}`),
    shape: (cell) => lookOf(cell).shape,
    shown,
    chosen: () => state.chosen,
    choose: (chosen) => change({ chosen }),
  };
  // Why no cell has a time at this answer's target; null: one has.
  const untimed = ({ target, seconds: times, reached }) =>
    times.some(measured) ? null : `no cell ${reached.some(Boolean) ? "has a time to" : "reached"} ${target}`;
  const figures = {
    curves(figure) {
      const { words, columns, targeted } = drawnQuantity();
      const lines = data.curves
        .filter((curve) => shown(curve.cell))
        .flatMap((curve) =>
          columns.map((key, place) => ({
            cell: curve.cell,
            style: curve.runs ? "dashed" : place ? "dotted" : "solid",
            points: curve[state.over]
              .map((each, period) => [each, (curve[key] || [])[period]])
              .filter((point) => point.every(measured)),
          })),
        )
        .filter(({ points }) => points.length);
      if (!lines.length) return false;
      const values = lines.flatMap(({ points }) => points.map(([, y]) => y)),
        answer = targeted && asked();
      if (answer) values.push(answer.target);
      const share = targeted && metric.share;
      const log = !share && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= 30;
      figure.axes(
        {
          values: lines.flatMap(({ points }) => points.map(([x]) => x)),
          from: 0,
          label: state.over === "seconds" ? CLOCK : `${data.period}s`,
        },
        { values, log, label: words },
      );
      if (answer) figure.level(answer.target, `target ${answer.target}`);
      lines.sort((a, b) => weight(a.cell) - weight(b.cell));
      for (const { cell, style, points } of lines) {
        const strong = weight(cell) > 0;
        figure.line(points, {
          stroke: cell === state.chosen ? css("--ink") : view.colour(cell),
          "stroke-width": strong ? 2.5 : 1.2,
          "stroke-opacity": strong || state.chosen === null ? 0.9 : 0.3,
          "data-cell": cell,
          "stroke-dasharray": DASHES[style],
        });
        points.forEach(([x, y]) => figure.mark(cell, figure.x.at(x), figure.y.at(y)));
      }
      if (columns.length > 1) figure.now("Dotted: the training loss, taken before each update.");
      return true;
    },
    pareto(figure) {
      const answer = asked(),
        there = answer ? every.filter((cell) => shown(cell) && answer.seconds[cell] > 0) : [];
      if (answer && untimed(answer)) return untimed(answer);
      if (!there.length) return false;
      figure.axes(
        { values: there.map((cell) => answer.seconds[cell]), log: true, label: `training seconds to ${answer.target}` },
        { values: there.map(work), log: true, label: `worker-seconds to ${answer.target}` },
      );
      const front = answer.front.filter((cell) => shown(cell) && answer.seconds[cell] > 0);
      const steps = front.flatMap((cell, place) =>
        place
          ? [
              [answer.seconds[cell], work(front[place - 1])],
              [answer.seconds[cell], work(cell)],
            ]
          : [[answer.seconds[cell], work(cell)]],
      );
      figure.line(steps, { stroke: css("--soft"), "stroke-width": 1.2 });
      there
        .sort((a, b) => weight(a) - weight(b))
        .forEach((cell) => figure.point(cell, answer.seconds[cell], work(cell)));
      for (const cell of there.filter((each) => rolesOf(each).length)) {
        const { x, y } = figure.marks.find((mark) => mark.cell === cell);
        const looks = { fill: css("--ink"), "font-size": 12, "font-weight": 600 };
        figure.note(rolesOf(cell).join(", "), x + 4, y - 14, looks, [0, 1, -1, 2, -2, 3]);
      }
      return true;
    },
    rates(figure) {
      const answer = asked(),
        there = every.filter(shown);
      if (!there.length) return false;
      const timed = answer && every.some((cell) => answer.seconds[cell] !== null);
      const number = (cell) => (timed ? answer.seconds[cell] : cells.metric[cell] && cells.metric[cell][0]);
      const sign = timed || metric.mode === "min" ? 1 : -1;
      const words = (cell) => (timed ? seconds(number(cell)) : metricText(number(cell)));
      charts.squares(
        figure,
        axes.learning_rate,
        axes.batch_size,
        there,
        (cell) => [cells.params[cell][RATE], cells.params[cell][BATCH]],
        (cell) => (measured(number(cell)) ? sign * number(cell) : null),
        (cell) => [measured(number(cell)) ? words(cell) : "–"],
      );
      figure.now(
        timed
          ? `Seconds to ${answer.target}; each square is its soonest cell.`
          : `${TITLE[0].toUpperCase()}${TITLE.slice(1)}; each square is its best cell.`,
      );
      return true;
    },
    time_to_target(figure) {
      const answer = asked(),
        { target, seconds: times, reached, met_last: last, seeds } = answer,
        there = every.filter((cell) => shown(cell) && seeds[cell]);
      if (untimed(answer)) return untimed(answer);
      if (!there.length) return false;
      const time = (cell) => `${seconds(times[cell])}${cells.flags[cell].length ? "†" : ""}`,
        logarithm = (cell) => (times[cell] > 0 ? Math.log(times[cell]) : times[cell]);
      const lines = (cell) =>
        measured(times[cell])
          ? [time(cell), `lr ${three(cells.params[cell][RATE])}`, ...rolesOf(cell).slice(0, 1)]
          : last[cell]
            ? ["met at the last", "evaluation"]
            : ["not reached"];
      const sized = (cell) => [cells.params[cell][WORKERS], cells.params[cell][BATCH]];
      const drawn = charts.squares(figure, axes.num_gpus, axes.batch_size, there, sized, logarithm, lines),
        timed = drawn.filter((cell) => measured(times[cell])).sort((a, b) => times[a] - times[b]);
      const ends = [...new Set([timed[0], timed.at(-1)])].filter(measured),
        between = ends.map((cell) => `${time(cell)} (${cells.label[cell]})`).join(" to ");
      const trained = drawn.filter((cell) => !cells.lent[cell]),
        sum = (numbers) => trained.reduce((whole, cell) => whole + numbers[cell], 0),
        missed = sum(seeds) - sum(reached);
      figure.now(
        `Training seconds to ${target} at the rate (lr) that is soonest there: ${between || "none is known"}` +
          `${missed ? `; ${missed} of ${sum(seeds)} seeds at these rates never got there` : ""}.`,
      );
      return true;
    },
    memory(figure) {
      const there = every.filter((cell) => shown(cell) && cells.memory[cell] !== null);
      if (!there.length) return false;
      const each = (cell) => cells.params[cell][BATCH] / cells.params[cell][WORKERS];
      const shares = [...new Set(there.map(each))];
      figure.axes(
        { values: shares, log: true, exact: shares.length <= 8 ? shares : null, label: "batch size a worker" },
        { values: there.map((cell) => gibibytes(cells.memory[cell])), from: 0, label: "GiB a worker, at most" },
      );
      there
        .sort((a, b) => weight(a) - weight(b))
        .forEach((cell) => figure.point(cell, each(cell), gibibytes(cells.memory[cell]), 4.5));
      return true;
    },
  };
  const weight = (cell) => (cell === state.chosen ? 2 : 0) + (rolesOf(cell).length ? 1 : 0);

  // ---- controls ----
  const controls = document.getElementById("controls"),
    drawn = [];
  function choices() {
    keys.forEach((key, place) => {
      const values = [...new Set(every.map((cell) => value(cell, place)))];
      if (values.length < 2) {
        delete state.filters[key.key];
        return;
      }
      const numeric = values.every((each) => !Number.isNaN(Number(each)));
      values.sort((a, b) => (numeric ? a - b : a.localeCompare(b)));
      const select = element("select", { "data-key": key.key }, element("option", { value: "" }, "all"));
      values.forEach((each) =>
        select.append(
          element("option", { value: each }, each === "null" ? "none" : each.replace(/^"(.*)"$/, "$1")),
        ),
      );
      if (values.includes(state.filters[key.key])) select.value = state.filters[key.key];
      else delete state.filters[key.key];
      select.addEventListener("change", () => {
        const filters = { ...state.filters, [key.key]: select.value };
        if (!select.value) delete filters[key.key];
        change({ filters });
      });
      controls.querySelector(".filters").append(element("label", {}, key.name, select));
    });
    const slider = document.getElementById("target");
    if (slider) {
      slider.value = state.target;
      slider.addEventListener("input", () => change({ target: Number(slider.value) }));
    }
    document
      .getElementById("csv")
      .addEventListener("click", () => save(new Blob([table()], { type: "text/csv" }), "cells.csv"));
    const over = document.getElementById("over");
    if (over) over.addEventListener("click", () => change({ over: state.over === "seconds" ? "epochs" : "seconds" }));
    const quantity = document.getElementById("quantity");
    if (quantity) {
      quantity.append(...quantities.map(({ name, words }) => element("option", { value: name }, words)));
      quantity.value = drawnQuantity().name;
      quantity.addEventListener("change", () => change({ quantity: quantity.value }));
    }
  }

  function table() {
    const answer = asked(),
      quote = (each) => (/[",\r\n]/.test(each) ? `"${each.replaceAll('"', '""')}"` : each);
    const text = (each) =>
      each === null || each === undefined ? "" : quote(typeof each === "string" ? each : JSON.stringify(each));
    const header = [
      "cell",
      ...keys.map((key) => key.key),
      "seeds_ended",
      "seeds_planned",
      `test_${metric.name}`,
      "epoch_seconds",
      ...rates,
      "speedup",
      "peak_memory_bytes",
      ...(answer ? ["target", "seconds", "seconds_low", "seconds_high", "worker_seconds"] : []),
      "flags",
    ];
    const rows = every
      .filter(shown)
      .map((cell) => [
        cells.label[cell],
        ...cells.params[cell],
        ...cells.seeds[cell],
        cells.metric[cell] && cells.metric[cell][0],
        cells.epoch_seconds[cell],
        ...rates.map((key) => cells[key][cell]),
        cells.speedup[cell],
        cells.memory[cell],
        ...(answer ? [answer.target, answer.seconds[cell], answer.low[cell], answer.high[cell], work(cell)] : []),
        cells.flags[cell].join(" "),
      ]);
    return [header, ...rows].map((row) => row.map(text).join(",")).join("\r\n") + "\r\n";
  }

  // ---- the tables of cells follow filters, choice and target ----
  const rows = [...document.querySelectorAll("tr[data-cell]")].map((row) => ({
    row,
    cell: Number(row.dataset.cell),
    time: row.querySelector("td[data-time]"),
  }));
  for (const { row, cell } of rows) {
    const button = element("button", { type: "button", class: "choose", "aria-pressed": "false" });
    button.append(...row.cells[0].childNodes);
    button.setAttribute("aria-label", cells.label[cell]);
    row.cells[0].append(button);
    row.addEventListener("click", () => change({ chosen: state.chosen === cell ? null : cell }));
    const address = runsAddress(cell);
    if (address) {
      const link = element(
        "a",
        {
          href: address,
          class: "runs",
          target: "_blank",
          rel: "noopener",
          "aria-label": `MLflow runs of ${cells.label[cell]}`,
        },
        "runs",
      );
      link.addEventListener("click", (event) => event.stopPropagation());
      row.cells[row.cells.length - 1].append(" ", link);
    }
  }
  function rewrite() {
    const answer = asked();
    for (const { row, cell, time } of rows) {
      row.hidden = !shown(cell);
      row.classList.toggle("chosen", cell === state.chosen);
      row.querySelector("button.choose").setAttribute("aria-pressed", String(cell === state.chosen));
      if (!answer) continue;
      if (time)
        time.textContent =
          answer.seconds[cell] === null && answer.met_last[cell]
            ? "met at the last evaluation"
            : `${three(answer.seconds[cell])}${answer.seconds[cell] !== null && cells.flags[cell].length ? "†" : ""}`;
      const last = row.cells[row.cells.length - 1],
        roles = rolesOf(cell);
      last.querySelectorAll(".role:not(.metric)").forEach((role) => role.remove());
      last.prepend(...roles.map((role) => element("strong", { class: "role" }, role)));
      row.classList.toggle("winner", Boolean(last.querySelector(".role")));
    }
    for (const head of document.querySelectorAll("th[data-time]")) {
      const words = answer ? `s to ${metric.name} ${answer.target}` : head.textContent;
      if (head.textContent === words) continue;
      (head.querySelector("button") || head).textContent = words;
      if (head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", "none"); // it was sorted by another target
    }
  }

  function update() {
    const answer = asked(),
      words = document.getElementById("target-words"),
      panel = document.getElementById("chosen");
    if (answer && words) {
      document.getElementById("target-value").textContent = answer.target;
      document.getElementById("target").setAttribute("aria-valuetext", String(answer.target));
      // at the study's own target the page says this at its top
      const told = state.target === data.answered ? [] : answer.words;
      words.replaceChildren(
        ...told.map((line) =>
          element("p", {}, ...(line.topic ? [element("strong", {}, `${line.topic}: `)] : []), line.text),
        ),
      );
    }
    const over = document.getElementById("over");
    if (over) over.textContent = state.over === "seconds" ? `over ${data.period}s` : "over seconds";
    panel.replaceChildren();
    if (state.chosen !== null && cells.label[state.chosen] !== undefined) {
      const clear = element("button", { type: "button" }, "clear"),
        address = runsAddress(state.chosen);
      clear.addEventListener("click", () => {
        const row = rows.find((each) => each.cell === state.chosen && each.row.checkVisibility());
        change({ chosen: null });
        if (row) row.row.querySelector("button.choose").focus();
      });
      panel.append(
        element("strong", {}, cells.label[state.chosen]),
        ": ",
        [...rolesOf(state.chosen), ...facts(state.chosen)].join("; "),
        ". ",
        ...(address
          ? [element("a", { href: address, target: "_blank", rel: "noopener" }, "Its runs in MLflow"), " "]
          : []),
        clear,
      );
    }
    rewrite();
    drawn.forEach((figure) => figure.draw());
  }

  document.getElementById("explorer").hidden = false; // before the figures ask how wide they are
  for (const box of document.querySelectorAll("figure[data-figure]")) {
    const name = box.dataset.figure;
    drawn.push(new Figure(box, figures[name] || ((figure) => charts.draw(figure, data.figures[name])), view));
  }
  choices();
  update();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((figure) => figure.draw()));
})();
