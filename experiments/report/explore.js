"use strict";
// Figures, filters and target slider of the page, drawn from the JSON in #study-data. No figure or answer is computed
// here: the recommendation at each target was made when the report was written. Texts of the study reach the page as
// text nodes and attributes only.
(() => {
  const source = document.getElementById("study-data");
  if (!source) return;
  const data = JSON.parse(source.textContent), { cells, keys, metric, unit, targets } = data;
  const [WORKERS, BATCH, RATE] = [0, 1, 2], count = cells.label.length, every = [...Array(count).keys()];
  const sizes = [...new Set(cells.params.map((params) => params[WORKERS]))].sort((a, b) => a - b);
  const HEIGHT = 300, MARGIN = { left: 58, right: 14, top: 14, bottom: 42 }, NEAR = 40, MOST_SQUARES = 12;
  const SHAPES = ["circle", "square", "triangle", "diamond", "down", "cross"];
  const MEMORY = "study-view " + data.study.id;

  // ---- state ----
  const state = { filters: {}, target: data.answered ?? targets.length - 1, chosen: null, over: "seconds" };
  try { Object.assign(state, JSON.parse(sessionStorage.getItem(MEMORY) || "{}")); } catch { /* storage is switched off */ }
  if (!targets[state.target]) state.target = data.answered ?? targets.length - 1;
  const asked = () => targets[state.target] || null;
  const value = (cell, key) => JSON.stringify(cells.params[cell][key]);
  const shown = (cell) => keys.every((key, place) => !(key.key in state.filters) || value(cell, place) === state.filters[key.key]);
  const change = (part) => {
    Object.assign(state, part);
    try { sessionStorage.setItem(MEMORY, JSON.stringify(state)); } catch { /* storage is switched off */ }
    update();
  };

  // ---- texts ----
  const three = (number) => number === null || number === undefined ? "–"
    : Math.abs(number) >= 999.5 && Math.abs(number) < 1e6 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(3)));
  const metricText = (number) => metric.share ? number.toFixed(3) : three(number);
  const range = (low, high, text) => low === null || low === high ? "" : ` (${text(low)} to ${text(high)})`;
  const seconds = (number) => number === null ? "–" : `${three(number)} s`;
  const gibibytes = (bytes) => bytes / 2 ** 30;
  const work = (cell) => asked().seconds[cell] === null ? null : asked().seconds[cell] * cells.params[cell][WORKERS];

  function facts(cell) {
    const lines = [], answer = asked(), [ended, planned] = cells.seeds[cell];
    lines.push(cells.inferred[cell] ? "inferred from the same trainings with other workers" : `${ended} of ${planned} seeds ended`);
    const known = cells.metric[cell];
    if (known) lines.push(`test ${metric.name} ${metricText(known[0])}${range(known[1], known[2], metricText)}`);
    if (answer) {
      const time = answer.seconds[cell];
      lines.push(time === null ? `no time to ${answer.target}: ${answer.reached[cell]} of ${answer.seeds[cell]} seeds reached it`
        : `${seconds(time)} to ${answer.target}${range(answer.low[cell], answer.high[cell], three)}`);
      if (time !== null) lines.push(`${three(work(cell))} ${unit}`
        + (data.price === null ? "" : `, cost ${three(work(cell) / 3600 * data.price)}`));
    }
    if (cells.epoch_seconds[cell] !== null) lines.push(`${three(cells.epoch_seconds[cell])} s an epoch`);
    if (cells.speedup[cell] !== null) lines.push(`speed-up ${three(cells.speedup[cell])}`);
    if (cells.memory[cell] !== null) lines.push(`${three(gibibytes(cells.memory[cell]))} GiB at most a worker`);
    if (cells.flags[cell].length) lines.push(`† ${cells.flags[cell].join(", ").replaceAll("_", " ")}`);
    return lines;
  }

  const rolesOf = (cell) => asked() ? Object.entries(asked().roles).filter(([, place]) => place === cell).map(([role]) => role) : [];

  function runsAddress(cell) {
    if (!data.runs) return null;
    const name = (key) => /^\w+$/.test(key) ? key : "`" + key + "`";
    const parts = keys.map((key, place) => `params.${name(key.key)} = '${data.runs.params[cell][place]}'`);
    parts.push("tags.`scalestudy.study_id` = '" + data.study.id + "'");
    return `${data.runs.page}?searchFilter=${encodeURIComponent(parts.join(" and "))}&workflowType=machine_learning`;
  }

  // ---- elements ----
  const element = (name, attributes, ...children) => {
    const made = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
    for (const [key, text] of Object.entries(attributes || {})) if (text !== null && text !== undefined) made.setAttribute(key, text);
    made.append(...children);
    return made;
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (cell) => css(`--w${sizes.indexOf(cells.params[cell][WORKERS]) % 6 + 1}`);

  function marker(x, y, shape, size, attributes) {
    const path = {
      circle: `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`,
      square: `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      triangle: `M${x} ${y - 1.2 * size}l${1.2 * size} ${2.1 * size}h${-2.4 * size}z`,
      diamond: `M${x} ${y - 1.4 * size}l${1.4 * size} ${1.4 * size}l${-1.4 * size} ${1.4 * size}l${-1.4 * size} ${-1.4 * size}z`,
      down: `M${x} ${y + 1.2 * size}l${1.2 * size} ${-2.1 * size}h${-2.4 * size}z`,
      cross: `M${x - size} ${y - size / 2.5}h${size * 0.6}v${-size * 0.6}h${size * 0.8}v${size * 0.6}h${size * 0.6}v${size * 0.8}h${-size * 0.6}v${size * 0.6}h${-size * 0.8}v${-size * 0.6}h${-size * 0.6}z`,
    }[shape];
    return element("svg:path", { d: path, ...attributes });
  }
  const shape = (cell) => SHAPES[sizes.indexOf(cells.params[cell][WORKERS]) % SHAPES.length];

  // ---- axes ----
  function ticks(low, high, log, most) {
    if (!log) {
      const raw = (high - low) / Math.max(1, most - 1), power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
      const found = [];
      for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high * (1 + 1e-12) + 1e-12; tick++) found.push(Number((tick * step).toPrecision(12)));
      return found;
    }
    for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7], [...Array(90).keys()].map((each) => 1 + each / 10)]) {
      const found = [];
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
        for (const step of steps) { const tick = Number((step * 10 ** decade).toPrecision(3)); if (tick >= low && tick <= high) found.push(tick); }
      }
      if (found.length >= 3) return found.filter((_, place) => place % Math.ceil(found.length / most) === 0);
    }
    return [low, high];
  }

  function scale(values, { log = false, from = null, least = null, exact = null }, start, end) {
    let low = Math.min(...values), high = Math.max(...values);
    if (log) {
      const spread = Math.max(1.12, (4 / (high / low)) ** 0.5); // never less than a factor of four: a log axis that shows less misleads
      [low, high] = [low / spread, high * spread];
    } else {
      if (from !== null) low = Math.min(from, low);
      if (least !== null) high = Math.max(high, least);
      const pad = (high - low || Math.abs(high) || 1) * 0.06;
      [low, high] = [from !== null && low >= from ? from : low - pad, high + pad];
    }
    const place = (number) => log ? Math.log(number) : number;
    const at = (number) => start + (place(number) - place(low)) / (place(high) - place(low)) * (end - start);
    return { at, ticks: exact || ticks(low, high, log, Math.max(3, Math.round(Math.abs(end - start) / (start > end ? 50 : 80)))), low, high };
  }

  // ---- one figure: axes, what it draws, and its marks, by which pointer and keys find cells ----
  class Figure {
    constructor(box, draw) {
      this.box = box; this.drawing = draw; this.marks = []; this.place = -1;
      this.plot = box.querySelector(".plot");
      this.tip = element("div", { class: "tip", hidden: "" });
      this.plot.addEventListener("pointermove", (event) => this.hover(event));
      this.plot.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      this.plot.addEventListener("click", (event) => { const mark = this.nearest(event); change({ chosen: mark && mark.cell !== state.chosen ? mark.cell : null }); });
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.plot.addEventListener("blur", () => { this.tip.hidden = true; });
      box.querySelector(".png").addEventListener("click", () => this.png());
    }
    draw() {
      this.width = Math.max(280, this.plot.clientWidth); this.height = HEIGHT; this.marks = [];
      this.svg = element("svg:svg", { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height, "aria-hidden": "true" });
      this.empty = !this.drawing(this);
      if (this.empty) this.svg.append(element("svg:text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle", fill: css("--soft"), "font-size": 13 }, "no cell to draw with these filters"));
      this.plot.replaceChildren(this.svg, this.tip);
    }
    axes(x, y) {
      const { left, right, top, bottom } = MARGIN, floor = this.height - bottom, end = this.width - right;
      this.x = scale(x.values, x, left, end); this.y = scale(y.values, y, floor, top);
      const rule = css("--rule"), ink = css("--soft"), text = { fill: ink, "font-size": 11.5 };
      for (const tick of this.y.ticks) {
        this.svg.append(element("svg:line", { x1: left, x2: end, y1: this.y.at(tick), y2: this.y.at(tick), stroke: rule }));
        this.svg.append(element("svg:text", { x: left - 7, y: this.y.at(tick) + 4, "text-anchor": "end", ...text }, y.text ? y.text(tick) : three(tick)));
      }
      for (const tick of this.x.ticks) {
        this.svg.append(element("svg:line", { x1: this.x.at(tick), x2: this.x.at(tick), y1: floor, y2: floor + 4, stroke: ink }));
        this.svg.append(element("svg:text", { x: this.x.at(tick), y: floor + 17, "text-anchor": "middle", ...text }, three(tick)));
      }
      this.svg.append(element("svg:line", { x1: left, x2: end, y1: floor, y2: floor, stroke: ink }));
      this.svg.append(element("svg:text", { x: (left + end) / 2, y: this.height - 6, "text-anchor": "middle", ...text }, x.label));
      this.svg.append(element("svg:text", { transform: `translate(13 ${(top + floor) / 2}) rotate(-90)`, "text-anchor": "middle", ...text }, y.label));
    }
    line(points, attributes) {
      const path = points.map(([x, y], place) => `${place ? "L" : "M"}${this.x.at(x).toFixed(1)} ${this.y.at(y).toFixed(1)}`).join("");
      this.svg.append(element("svg:path", { d: path, fill: "none", ...attributes }));
    }
    level(number, words) {
      if (number < this.y.low || number > this.y.high) return;
      const y = this.y.at(number);
      this.svg.append(element("svg:line", { x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y, stroke: css("--soft"), "stroke-dasharray": "3 3" }));
      this.svg.append(element("svg:text", { x: this.width - MARGIN.right, y: y - 5, "text-anchor": "end", fill: css("--soft"), "font-size": 11.5 }, words));
    }
    mark(cell, x, y) { this.marks.push({ cell, x, y }); }
    point(cell, x, y, size = 5) {
      const [left, top] = [this.x.at(x), this.y.at(y)], roles = rolesOf(cell);
      const fill = colour(cell);
      if (roles.length) this.svg.append(marker(left, top, "circle", size + 5, { fill: "none", stroke: css("--accent"), "stroke-width": 2 }));
      if (cell === state.chosen) this.svg.append(marker(left, top, "circle", size + 8, { fill: "none", stroke: css("--ink"), "stroke-width": 2.5, class: "chosen" }));
      this.svg.append(marker(left, top, shape(cell), size, { fill, "fill-opacity": 0.85, "data-cell": cell }));
      this.mark(cell, left, top);
      return [left, top];
    }
    nearest(event) {
      const box = this.svg.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) * this.width / box.width, (event.clientY - box.top) * this.height / box.height];
      let best = null, least = NEAR;
      this.marks.forEach((mark) => { const far = Math.hypot(mark.x - x, mark.y - y); if (far < least) [least, best] = [far, mark]; });
      return best;
    }
    hover(event) { this.say(this.nearest(event)); }
    say(mark) {
      this.tip.hidden = !mark;
      if (!mark) return;
      this.tip.replaceChildren(element("strong", {}, cells.label[mark.cell]), ...facts(mark.cell).map((text) => element("div", {}, text)));
      const left = Math.min(mark.x + 14, this.width - this.tip.offsetWidth - 4);
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${mark.y + 14 + this.tip.offsetHeight > this.height ? Math.max(0, mark.y - 14 - this.tip.offsetHeight) : mark.y + 14}px`;
    }
    key(event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") { this.tip.hidden = true; change({ chosen: null }); return; }
      if (!step || !this.marks.length) return;
      event.preventDefault();
      const order = [...new Set([...this.marks].sort((a, b) => a.x - b.x || a.y - b.y).map((mark) => mark.cell))];
      this.place = (order.indexOf(state.chosen) + step + order.length) % order.length;
      change({ chosen: order[this.place] });
      this.say(this.marks.find((mark) => mark.cell === state.chosen));
    }
    png() {
      const copy = this.svg.cloneNode(true), ratio = 2;
      copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
      copy.setAttribute("font-family", "system-ui, sans-serif");
      copy.prepend(element("svg:rect", { width: this.width, height: this.height, fill: css("--paper") }));
      const image = new Image();
      image.onload = () => {
        const canvas = element("canvas", { width: this.width * ratio, height: this.height * ratio });
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob((blob) => save(blob, `${this.box.id}.png`));
      };
      image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
    }
  }

  function save(blob, name) {
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // ---- the figures ----
  const figures = {
    curves(figure) {
      const curves = data.curves.filter((curve) => shown(curve.cell) && curve[state.over][0].length);
      if (!curves.length) return false;
      const [all, answer] = [curves.flatMap((curve) => curve[state.over][1]), asked()];
      const log = !metric.share && Math.min(...all) > 0 && Math.max(...all) / Math.min(...all) >= 30;
      figure.axes(
        { values: curves.flatMap((curve) => curve[state.over][0]), from: 0, label: state.over === "seconds" ? "training seconds, evaluation left out" : "epochs" },
        { values: answer ? [...all, answer.target] : all, log, label: `test ${metric.name}` });
      if (answer) figure.level(answer.target, `target ${answer.target}`);
      const order = [...curves].sort((a, b) => weight(a.cell) - weight(b.cell));
      for (const { cell, [state.over]: [x, y] } of order) {
        const strong = weight(cell) > 0;
        figure.line(x.map((each, place) => [each, y[place]]), { stroke: cell === state.chosen ? css("--ink") : colour(cell), "stroke-width": strong ? 2.5 : 1.2, "stroke-opacity": strong || state.chosen === null ? 0.9 : 0.3, "data-cell": cell });
        x.forEach((each, place) => figure.mark(cell, figure.x.at(each), figure.y.at(y[place])));
      }
      return true;
    },
    pareto(figure) {
      const answer = asked(), there = answer ? every.filter((cell) => shown(cell) && answer.seconds[cell] > 0) : [];
      if (!there.length) return false;
      figure.axes({ values: there.map((cell) => answer.seconds[cell]), log: true, label: `training seconds to ${answer.target}` },
        { values: there.map(work), log: true, label: `${unit} to ${answer.target}` });
      const front = answer.front.filter((cell) => shown(cell) && answer.seconds[cell] > 0);
      const steps = front.flatMap((cell, place) => place ? [[answer.seconds[cell], work(front[place - 1])], [answer.seconds[cell], work(cell)]] : [[answer.seconds[cell], work(cell)]]);
      figure.line(steps, { stroke: css("--soft"), "stroke-width": 1.2 });
      there.sort((a, b) => weight(a) - weight(b)).forEach((cell) => figure.point(cell, answer.seconds[cell], work(cell)));
      names(figure, there);
      return true;
    },
    speedup(figure) {
      const groups = new Map();
      for (const row of data.timings) {
        const cell = row.cells.includes(state.chosen) ? state.chosen : row.cells.find(shown);
        if (cell === undefined || !shown(cell)) continue;
        const rest = JSON.stringify(row.rest);
        groups.set(rest, [...(groups.get(rest) || []), { ...row, cell }]);
      }
      const lines = [...groups.values()].filter((rows) => rows.length > 1);
      if (!lines.length) return false;
      const rows = lines.flat(), workers = [...new Set(rows.map((row) => row.workers))].sort((a, b) => a - b);
      const most = workers.at(-1), log = most >= 16;
      figure.axes({ values: workers, log, exact: workers.length <= 10 ? workers : null, from: log ? null : 0, label: "workers" },
        { values: [...rows.map((row) => row.speedup), 1], log, from: log ? null : 0, label: "speed-up over one worker" });
      const top = Math.min(most, figure.y.high);
      figure.line([[1, 1], [top, top]], { stroke: css("--soft"), "stroke-dasharray": "3 3" });
      figure.svg.append(element("svg:text", { x: figure.x.at(top) - 6, y: figure.y.at(top) + 12, "text-anchor": "end", fill: css("--soft"), "font-size": 11.5 }, "ideal"));
      for (const line of lines) {
        line.sort((a, b) => a.workers - b.workers);
        figure.line(line.map((row) => [row.workers, row.speedup]), { stroke: css("--soft"), "stroke-width": 1.2 });
        line.forEach((row) => figure.point(row.cell, row.workers, row.speedup, 4.5));
        const last = line.at(-1);
        if (lines.length <= 6) figure.svg.append(element("svg:text", { x: figure.x.at(last.workers) - 9, y: figure.y.at(last.speedup) - 8, "text-anchor": "end", fill: css("--soft"), "font-size": 11.5 }, `batch ${last.rest.batch_size}`));
      }
      return true;
    },
    rates(figure) {
      const answer = asked(), timed = answer && every.some((cell) => answer.seconds[cell] !== null);
      const figureOf = (cell) => timed ? answer.seconds[cell] : cells.metric[cell] && cells.metric[cell][0];
      const sign = timed || metric.mode === "min" ? 1 : -1;
      const there = every.filter(shown), squares = new Map();
      for (const cell of there) {
        const key = `${cells.params[cell][BATCH]} ${cells.params[cell][RATE]}`, held = squares.get(key);
        const worth = (each) => figureOf(each) === null || figureOf(each) === undefined ? Infinity : sign * figureOf(each);
        if (held === undefined || worth(cell) < worth(held)) squares.set(key, cell);
      }
      const batches = [...new Set(there.map((cell) => cells.params[cell][BATCH]))].sort((a, b) => a - b);
      const rates = [...new Set(there.map((cell) => cells.params[cell][RATE]))].sort((a, b) => a - b);
      if (!there.length) return false;
      const known = [...squares.values()].map(figureOf).filter((each) => each !== null && each !== undefined);
      const [best, worst] = [Math.min(...known.map((each) => sign * each)), Math.max(...known.map((each) => sign * each))];
      const width = (figure.width - MARGIN.left - MARGIN.right) / rates.length, height = (figure.height - MARGIN.top - MARGIN.bottom) / batches.length;
      const text = { fill: css("--soft"), "font-size": 11.5 }, thin = (names, place) => place % Math.ceil(names.length / MOST_SQUARES) === 0;
      for (const cell of squares.values()) {
        const [column, row] = [rates.indexOf(cells.params[cell][RATE]), batches.indexOf(cells.params[cell][BATCH])];
        const [x, y] = [MARGIN.left + column * width, figure.height - MARGIN.bottom - (row + 1) * height], number = figureOf(cell);
        const strength = number === null || number === undefined ? 0 : worst > best ? 1 - (sign * number - best) / (worst - best) : 1;
        const stroke = cell === state.chosen ? css("--ink") : rolesOf(cell).length ? css("--accent") : "none";
        figure.svg.append(element("svg:rect", { x: x + 1.5, y: y + 1.5, width: Math.max(1, width - 3), height: Math.max(1, height - 3), fill: css("--ink"), "fill-opacity": 0.04 + 0.3 * strength, "data-cell": cell }));
        if (stroke !== "none") figure.svg.append(element("svg:rect", { x: x + 2, y: y + 2, width: Math.max(1, width - 4), height: Math.max(1, height - 4), fill: "none", stroke, "stroke-width": 2.5 }));
        if (rates.length <= MOST_SQUARES && batches.length <= MOST_SQUARES && width > 38) {
          const words = number === null || number === undefined ? "–" : timed ? seconds(number) : metricText(number);
          figure.svg.append(element("svg:text", { x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle", fill: css("--ink"), "font-size": 11.5 }, words));
        }
        figure.mark(cell, x + width / 2, y + height / 2);
      }
      rates.forEach((rate, place) => thin(rates, place) && figure.svg.append(element("svg:text", { x: MARGIN.left + (place + 0.5) * width, y: figure.height - MARGIN.bottom + 17, "text-anchor": "middle", ...text }, String(rate))));
      batches.forEach((batch, place) => thin(batches, place) && figure.svg.append(element("svg:text", { x: MARGIN.left - 7, y: figure.height - MARGIN.bottom - (place + 0.5) * height + 4, "text-anchor": "end", ...text }, String(batch))));
      figure.svg.append(element("svg:text", { x: figure.width / 2, y: figure.height - 6, "text-anchor": "middle", ...text }, "learning rate"));
      figure.svg.append(element("svg:text", { transform: `translate(13 ${figure.height / 2 - 14}) rotate(-90)`, "text-anchor": "middle", ...text }, "batch size, all workers"));
      figure.box.querySelector(".now").textContent = timed ? `Seconds to ${answer.target}; each square is its soonest cell.` : `Test ${metric.name}; each square is its best cell.`;
      return true;
    },
    memory(figure) {
      const there = every.filter((cell) => shown(cell) && cells.memory[cell] !== null);
      if (!there.length) return false;
      const each = (cell) => cells.params[cell][BATCH] / cells.params[cell][WORKERS];
      const shares = [...new Set(there.map(each))];
      figure.axes({ values: shares, log: true, exact: shares.length <= 8 ? shares : null, label: "batch size a worker" },
        { values: there.map((cell) => gibibytes(cells.memory[cell])), from: 0, label: "GiB a worker, at most" });
      there.sort((a, b) => weight(a) - weight(b)).forEach((cell) => figure.point(cell, each(cell), gibibytes(cells.memory[cell]), 4.5));
      return true;
    },
  };
  const weight = (cell) => (cell === state.chosen ? 2 : 0) + (rolesOf(cell).length ? 1 : 0);

  function names(figure, there) {
    const taken = [];
    for (const cell of there.filter((each) => rolesOf(each).length)) {
      const mark = figure.marks.find((each) => each.cell === cell), words = rolesOf(cell).join(", "), width = words.length * 6.4;
      const left = mark.x + 14 + width > figure.width - MARGIN.right;
      let y = mark.y - 10;
      while (taken.some(([x, other]) => Math.abs(other - y) < 14 && Math.abs(x - mark.x) < 220)) y += 15;
      taken.push([mark.x, y]);
      figure.svg.append(element("svg:text", { x: mark.x + (left ? -13 : 13), y, "text-anchor": left ? "end" : "start", fill: css("--ink"), "font-size": 12, "font-weight": 600, stroke: css("--paper"), "stroke-width": 3, "paint-order": "stroke" }, words));
    }
  }

  // ---- controls ----
  const controls = document.getElementById("controls"), drawn = [];
  function choices() {
    keys.forEach((key, place) => {
      const values = [...new Set(every.map((cell) => value(cell, place)))];
      if (values.length < 2) return;
      const numeric = values.every((each) => !Number.isNaN(Number(each)));
      values.sort((a, b) => numeric ? a - b : a.localeCompare(b));
      const select = element("select", { "data-key": key.key }, element("option", { value: "" }, "all"));
      values.forEach((each) => select.append(element("option", { value: each }, JSON.parse(each) === null ? "none" : String(JSON.parse(each)))));
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
    document.getElementById("csv").addEventListener("click", () => save(new Blob([table()], { type: "text/csv" }), "cells.csv"));
    const over = document.getElementById("over");
    if (over) over.addEventListener("click", () => change({ over: state.over === "seconds" ? "epochs" : "seconds" }));
    controls.hidden = false;
  }

  function table() {
    const answer = asked(), quote = (each) => /[",\r\n]/.test(each) ? `"${each.replaceAll('"', '""')}"` : each;
    const text = (each) => each === null || each === undefined ? "" : quote(typeof each === "string" ? each : JSON.stringify(each));
    const header = ["cell", ...keys.map((key) => key.key), "seeds_ended", "seeds_planned", `test_${metric.name}`, "epoch_seconds", "speedup", "peak_memory_bytes",
      ...(answer ? ["target", "seconds", "seconds_low", "seconds_high", "gpu_seconds"] : []), "flags"];
    const rows = every.filter(shown).map((cell) => [cells.label[cell], ...cells.params[cell], ...cells.seeds[cell], cells.metric[cell] && cells.metric[cell][0],
      cells.epoch_seconds[cell], cells.speedup[cell], cells.memory[cell],
      ...(answer ? [answer.target, answer.seconds[cell], answer.low[cell], answer.high[cell], work(cell)] : []), cells.flags[cell].join(" ")]);
    return [header, ...rows].map((row) => row.map(text).join(",")).join("\r\n") + "\r\n";
  }

  // ---- the tables of cells follow filters, choice and target ----
  const rows = [...document.querySelectorAll("tr[data-cell]")].map((row) => ({ row, cell: Number(row.dataset.cell), time: row.querySelector("td[data-time]") }));
  for (const { row, cell } of rows) {
    const button = element("button", { type: "button", class: "choose", "aria-pressed": "false" });
    button.append(...row.cells[0].childNodes);
    button.setAttribute("aria-label", cells.label[cell]);
    row.cells[0].append(button);
    row.addEventListener("click", () => change({ chosen: state.chosen === cell ? null : cell }));
    const address = runsAddress(cell);
    if (address) {
      const link = element("a", { href: address, class: "runs", target: "_blank", rel: "noopener", "aria-label": `MLflow runs of ${cells.label[cell]}` }, "runs");
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
      if (time) time.textContent = `${three(answer.seconds[cell])}${answer.seconds[cell] !== null && cells.flags[cell].length ? "†" : ""}`;
      const last = row.cells[row.cells.length - 1], roles = rolesOf(cell);
      last.querySelectorAll(".role:not(.metric)").forEach((role) => role.remove());
      roles.reverse().forEach((role) => last.prepend(element("strong", { class: "role" }, role), " "));
      row.classList.toggle("winner", Boolean(last.querySelector(".role")));
    }
    for (const head of document.querySelectorAll("th[data-time]")) (head.querySelector("button") || head).textContent = answer ? `s to ${answer.target}` : head.textContent;
  }

  function update() {
    const answer = asked(), words = document.getElementById("target-words"), panel = document.getElementById("chosen");
    if (answer && words) {
      document.getElementById("target-value").textContent = answer.target;
      document.getElementById("target").setAttribute("aria-valuetext", String(answer.target));
      words.replaceChildren(...answer.words.map((line) => element("p", {}, ...(line.topic ? [element("strong", {}, `${line.topic}: `)] : []), line.text)));
    }
    const over = document.getElementById("over");
    if (over) over.textContent = state.over === "seconds" ? "over epochs" : "over seconds";
    panel.replaceChildren();
    if (state.chosen !== null && cells.label[state.chosen] !== undefined) {
      const clear = element("button", { type: "button" }, "clear"), address = runsAddress(state.chosen);
      clear.addEventListener("click", () => change({ chosen: null }));
      panel.append(element("strong", {}, cells.label[state.chosen]), ": ", [...rolesOf(state.chosen), ...facts(state.chosen)].join("; "), ". ",
        ...(address ? [element("a", { href: address, target: "_blank", rel: "noopener" }, "Its runs in MLflow"), " "] : []), clear);
    }
    rewrite();
    drawn.forEach((figure) => figure.draw());
  }

  for (const box of document.querySelectorAll("figure[data-figure]")) {
    box.querySelector(".buttons").hidden = false;
    drawn.push(new Figure(box, figures[box.dataset.figure]));
  }
  choices();
  update();
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawn.forEach((figure) => figure.draw()), 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((figure) => figure.draw()));
})();
