// One figure of the page: axes, lines, marks, a legend, and how pointer and arrow keys find marks in it. It knows no
// study: what it has to know of a cell it asks its view (title, facts, roles, colour, shape, shown, chosen, choose).
const drawing = (() => {
  const HEIGHT = 300,
    MARGIN = { left: 58, right: 14, top: 14, bottom: 42 },
    LEGEND_LINE = 19,
    LETTER = 6.7, // pixels of a letter of the usual size, about
    BESIDE_TICKS = 27, // pixels of a vertical axis's label, and around its numbers
    NEAR = 40; // pixels from which on a mark is pointed at
  const LEAST_RATIO = 4; // of a log axis: on less, small differences look large
  const DASHES = { solid: null, dashed: "5 3", dotted: "1.5 2.5" }; // by the LineStyle of charts.py

  const measured = (number) => number !== null && number !== undefined;
  const three = (number) =>
    !measured(number)
      ? "–"
      : Math.abs(number) >= 999.5 && Math.abs(number) < 1e6
        ? Math.round(number).toLocaleString("en")
        : String(Number(number.toPrecision(3)));
  // ---- elements ----
  const element = (name, attributes, ...children) => {
    const made = name.startsWith("svg:")
      ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
      : document.createElement(name);
    for (const [key, text] of Object.entries(attributes))
      if (measured(text)) made.setAttribute(key, text);
    made.append(...children);
    return made;
  };
  const colours = new Map(); // of the present scheme
  const css = (name) => {
    if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return colours.get(name);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

  const painted = (colour, hollow) =>
    hollow ? { fill: css("--paper"), stroke: colour, "stroke-width": 1.8 } : { fill: colour, "fill-opacity": 0.85 };
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

  // ---- axes ----
  function ticks(low, high, log, most) {
    if (!log) {
      const raw = (high - low) / (most - 1),
        power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
      const found = [];
      for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high * (1 + 1e-12) + 1e-12; tick++)
        found.push(Number((tick * step).toPrecision(12)));
      return found;
    }
    for (const steps of [
      [1],
      [1, 3],
      [1, 2, 5],
      [1, 1.5, 2, 3, 4, 5, 7],
      [...Array(90).keys()].map((each) => 1 + each / 10),
    ]) {
      const found = [];
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
        for (const step of steps) {
          const tick = Number((step * 10 ** decade).toPrecision(3));
          if (tick >= low && tick <= high) found.push(tick);
        }
      }
      if (found.length >= 3) return found.filter((_, place) => place % Math.ceil(found.length / most) === 0);
    }
    return [low, high];
  }

  function scale(values, { log = false, from = null, exact = null }, start, end) {
    let low = Math.min(...values),
      high = Math.max(...values);
    if (log) {
      const spread = Math.max(1.12, (LEAST_RATIO / (high / low)) ** 0.5);
      [low, high] = [low / spread, high * spread];
    } else {
      if (from !== null) low = Math.min(from, low);
      const pad = (high - low || Math.abs(high) || 1) * 0.06;
      [low, high] = [from !== null && low >= from ? from : low - pad, high + pad];
    }
    const place = (number) => (log ? Math.log(number) : number);
    const at = (number) => start + ((place(number) - place(low)) / (place(high) - place(low))) * (end - start);
    const most = Math.max(3, Math.round(Math.abs(end - start) / (start > end ? 40 : 80)));
    const given = exact && exact.filter((tick) => tick >= low && tick <= high).sort((a, b) => a - b);
    return { at, ticks: given || ticks(low, high, log, most), low, high };
  }

  class Figure {
    constructor(box, draw, view) {
      this.view = view;
      this.box = box;
      this.drawing = draw;
      this.marks = [];
      this.plot = box.querySelector(".plot");
      this.tip = element("div", { class: "tip", hidden: "" });
      this.plot.addEventListener("pointermove", (event) => this.say(this.nearest(event)));
      this.plot.addEventListener("pointerleave", () => {
        this.tip.hidden = true;
      });
      this.plot.addEventListener("click", (event) => {
        const mark = this.nearest(event);
        this.view.choose(mark && mark.cell !== this.view.chosen() ? mark.cell : null);
      });
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.plot.addEventListener("blur", () => {
        this.tip.hidden = true;
      });
      const title = box.querySelector("h3").textContent;
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "group");
      this.plot.setAttribute("aria-label", `${title}. Arrow keys go from mark to mark and say what each is.`);
      const png = element("button", { type: "button", class: "png save", "aria-label": `${title} as PNG` }, "PNG");
      png.addEventListener("click", () => this.png());
      box.querySelector(".buttons").append(" ", png);
      // where the window changes, and where its section is opened; in the next picture, since it changes its own height
      const fit = () => this.plot.clientWidth !== this.fits && this.draw();
      new ResizeObserver(() => requestAnimationFrame(fit)).observe(this.plot);
      addEventListener("beforeprint", fit); // after that of tables.js, which opens sections
    }
    draw() {
      this.fits = this.plot.clientWidth;
      this.width = Math.max(280, this.fits);
      this.left = MARGIN.left;
      this.right = this.width - MARGIN.right;
      this.top = MARGIN.top;
      this.tall(HEIGHT - MARGIN.top - MARGIN.bottom);
      this.marks = [];
      this.notes = [];
      this.svg = element("svg:svg", { "aria-hidden": "true" });
      this.now("");
      const drawn = this.drawing(this); // true, or why there is nothing to draw, or false
      const empty = drawn !== true;
      this.box.toggleAttribute("data-empty", empty);
      if (empty)
        this.text(drawn || "no cell to draw: change the filters or the target", this.width / 2, this.height / 2, {
          "font-size": 13,
        });
      const { width, height } = this;
      for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height }))
        this.svg.setAttribute(name, value);
      this.plot.replaceChildren(this.svg, this.tip);
    }
    // Makes room for so many pixels between the top and the lower axis.
    tall(pixels) {
      this.floor = this.top + pixels;
      this.height = this.floor + MARGIN.bottom;
    }
    now(words) {
      this.box.querySelector(".now").textContent = words;
    }
    axes(x, y) {
      this.y = y && scale(y.values, y, this.floor, this.top);
      const letters = y ? this.y.ticks.map((tick) => three(tick).length) : [];
      if (y) this.left = Math.max(this.left, BESIDE_TICKS + LETTER * Math.max(...letters));
      const { left, right, top, floor } = this;
      this.x = scale(x.values, x, left, right);
      for (const tick of y ? this.y.ticks : []) {
        const at = this.y.at(tick);
        this.rule(left, at, right, at, { stroke: css("--rule") });
        this.text(three(tick), left - 7, at + 4, { "text-anchor": "end" });
      }
      let taken = -Infinity;
      for (const tick of this.x.ticks) {
        const at = this.x.at(tick),
          half = (three(tick).length * LETTER) / 2;
        if (!y) this.rule(at, top, at, floor, { stroke: css("--rule") });
        this.rule(at, floor, at, floor + 4);
        if (at - half < taken) continue;
        this.text(three(tick), at, floor + 17);
        taken = at + half + 4;
      }
      this.rule(left, floor, right, floor);
      this.labels(x.label, y && y.label);
    }
    labels(x, y) {
      this.text(x, (this.left + this.right) / 2, this.floor + 36);
      if (y) this.text(y, 0, 0, { transform: `translate(13 ${(this.top + this.floor) / 2}) rotate(-90)` });
    }
    // Below the axes: what some looks mean, each {words, colour, line, shape, hollow, area}.
    legend(entries) {
      const keys = element("svg:g", { class: "keys" }),
        edge = 8;
      let [x, y] = [edge, this.height + 12];
      for (const { words, colour, line, shape, hollow, area } of entries) {
        const wide = 46 + words.length * LETTER,
          paint = css(`--${colour}`);
        if (x > edge && x + wide > this.width) [x, y] = [edge, y + LEGEND_LINE];
        if (area) keys.append(element("svg:rect", { x, y: y - 10, width: 24, height: 11, fill: paint, opacity: area }));
        if (line) {
          const looks = { stroke: paint, "stroke-width": 1.5, "stroke-dasharray": DASHES[line] };
          keys.append(element("svg:line", { x1: x, x2: x + 24, y1: y - 4, y2: y - 4, ...looks }));
        }
        if (shape) keys.append(marker(x + 12, y - 4, shape, 4.5, painted(paint, hollow)));
        keys.append(element("svg:text", { x: x + 31, y, fill: css("--ink"), "font-size": 11.5 }, words));
        x += wide;
      }
      this.height = y + 10;
      this.svg.append(keys);
    }
    text(words, x, y, looks) {
      const usual = { "text-anchor": "middle", fill: css("--soft"), "font-size": 11.5 };
      this.svg.append(element("svg:text", { x, y, ...usual, ...looks }, words));
    }
    rule(x1, y1, x2, y2, looks) {
      this.svg.append(element("svg:line", { x1, y1, x2, y2, stroke: css("--soft"), ...looks }));
    }
    line(points, attributes) {
      const path = points
        .map(([x, y], place) => `${place ? "L" : "M"}${this.x.at(x).toFixed(1)} ${this.y.at(y).toFixed(1)}`)
        .join("");
      this.svg.append(element("svg:path", { d: path, fill: "none", ...attributes }));
    }
    // The area between low and high of points [x, low, high].
    area(points, attributes) {
      const edge = [...points.map(([x, low]) => [x, low]), ...points.map(([x, , high]) => [x, high]).reverse()];
      this.line(edge, { stroke: "none", ...attributes });
    }
    interval(x, low, high, looks) {
      const [at, bottom, top] = [this.x.at(x), this.y.at(low), this.y.at(high)];
      for (const [x1, y1, x2, y2] of [
        [at, bottom, at, top],
        [at - 3, bottom, at + 3, bottom],
        [at - 3, top, at + 3, top],
      ])
        this.rule(x1, y1, x2, y2, looks);
    }
    level(number, words) {
      if (number < this.y.low || number > this.y.high) return;
      const y = this.y.at(number);
      this.rule(this.left, y, this.right, y, { "stroke-dasharray": "3 3" });
      this.text(words, this.right, y - 5, { "text-anchor": "end" });
    }
    upright(number, words, looks) {
      const x = this.x.at(number);
      this.rule(x, this.top, x, this.floor, looks);
      const turned = `translate(${x - 5} ${this.top + 2}) rotate(-90)`;
      if (words) this.text(words, 0, 0, { "text-anchor": "end", transform: turned });
    }
    // Words beside a place, on its left at the right edge. Where others stand already they are moved by one of these
    // lines, up or down; where all are taken they are left out.
    note(words, x, y, looks, lines = [0]) {
      const width = words.length * LETTER + 8,
        right = x + 9 + width <= this.width,
        from = right ? x + 9 : x - 9 - width;
      const apart = (other) => from > other.to || other.from > from + width,
        free = (at) => this.notes.every((other) => Math.abs(other.y - at) >= 13 || apart(other));
      const at = lines.map((step) => y + 4 + step * 13).find(free);
      if (at === undefined) return;
      this.notes.push({ from, to: from + width, y: at });
      const halo = { stroke: css("--paper"), "stroke-width": 3, "paint-order": "stroke" };
      this.text(words, right ? x + 9 : x - 9, at, { "text-anchor": right ? "start" : "end", ...halo, ...looks });
    }
    // What is pointed at: a cell, or null; words: a title and lines in place of what the view tells of the cell.
    // from: the left end of a mark that is long.
    mark(cell, x, y, words = null, from = x) {
      this.marks.push({ cell, x, y, words, from });
    }
    point(cell, x, y, size = 5, { colour, shape, hollow, words } = {}) {
      const [left, top] = [this.x.at(x), this.y.at(y)],
        roles = cell === null ? [] : this.view.roles(cell);
      if (roles.length)
        this.svg.append(
          marker(left, top, "circle", size + 5, { fill: "none", stroke: css("--accent"), "stroke-width": 2 }),
        );
      if (cell !== null && cell === this.view.chosen())
        this.svg.append(
          marker(left, top, "circle", size + 8, {
            fill: "none",
            stroke: css("--ink"),
            "stroke-width": 2.5,
            class: "chosen",
          }),
        );
      const looks = { ...painted(colour || this.view.colour(cell), hollow), "data-cell": cell };
      this.svg.append(marker(left, top, shape || this.view.shape(cell), size, looks));
      this.mark(cell, left, top, words);
      return [left, top];
    }
    nearest(event) {
      const box = this.svg.getBoundingClientRect();
      const [x, y] = [
        ((event.clientX - box.left) * this.width) / box.width,
        ((event.clientY - box.top) * this.height) / box.height,
      ];
      let best = null,
        least = NEAR;
      this.marks.forEach((mark) => {
        const far = Math.hypot(Math.max(mark.from - x, x - mark.x, 0), mark.y - y);
        if (far < least) [least, best] = [far, mark];
      });
      return best;
    }
    say(mark) {
      this.tip.hidden = !mark;
      if (!mark) return;
      this.tip.ariaLive = mark.words ? "polite" : "off"; // of a cell the page says above its figures what is known
      const [title, ...lines] = mark.words || [this.view.title(mark.cell), ...this.view.facts(mark.cell)];
      this.tip.replaceChildren(element("strong", {}, title), ...lines.map((text) => element("div", {}, text)));
      const left = Math.min(mark.x + 14, this.width - this.tip.offsetWidth - 4);
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${mark.y + 14 + this.tip.offsetHeight > this.height ? Math.max(0, mark.y - 14 - this.tip.offsetHeight) : mark.y + 14}px`;
    }
    key(event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") {
        this.tip.hidden = true;
        this.view.choose(null);
        return;
      }
      if (!step || !this.marks.length) return;
      event.preventDefault();
      // a mark's name is its cell, or its title where it has none
      const name = ({ cell, words }) => cell ?? words[0];
      const order = [...new Set([...this.marks].sort((a, b) => a.x - b.x || a.y - b.y).map(name))];
      const place = (order.indexOf(this.view.chosen() ?? this.told) + step + order.length) % order.length;
      this.told = order[place];
      this.view.choose(this.marks.find((mark) => name(mark) === this.told).cell);
      this.say(this.marks.find((mark) => name(mark) === this.told)); // it was drawn anew
    }
    async png() {
      (await picture(this.box)).toBlob((blob) => save(blob, `${this.box.id}.png`));
    }
  }

  // A figure of the page as a canvas: its title, what its numbers are, the drawing, and what its colours mean.
  async function picture(box) {
    const EDGE = 14,
      LINE = 22,
      RATIO = 2;
    const svg = box.querySelector(".plot svg").cloneNode(true),
      [, , w, h] = svg.getAttribute("viewBox").split(" ").map(Number);
    const width = Math.max(560, w),
      height = (h * width) / w,
      note = box.querySelector(".now"),
      // squares are shaded, and a figure with a legend has other colours
      coloured = svg.querySelector("[data-cell]:not(rect)") && !svg.querySelector(".keys"),
      keys = coloured ? [...document.querySelectorAll(".legend .key")] : [];
    const lines = [box.querySelector("h3").textContent];
    for (const word of note.textContent.split(" ").filter(Boolean)) {
      const longer = `${lines.at(-1)} ${word}`;
      if (lines.length > 1 && longer.length * 7 < width) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    const top = EDGE + LINE * lines.length,
      foot = keys.length ? LINE + EDGE : EDGE;
    const [wide, high] = [width + 2 * EDGE, top + height + foot];
    const whole = element("svg:svg", { width: wide, height: high });
    whole.setAttribute("font-family", "system-ui, sans-serif");
    whole.append(element("svg:rect", { width: wide, height: high, fill: css("--paper") }));
    lines.forEach((text, place) =>
      whole.append(
        element(
          "svg:text",
          {
            x: EDGE,
            y: EDGE + LINE * place + 14,
            fill: css(place ? "--soft" : "--ink"),
            "font-size": place ? 12.5 : 15,
            "font-weight": place ? 400 : 650,
          },
          text,
        ),
      ),
    );
    for (const [name, number] of Object.entries({ x: EDGE, y: top, width, height })) svg.setAttribute(name, number);
    whole.append(svg);
    let x = EDGE;
    for (const key of keys) {
      const y = top + height + EDGE,
        words = key.parentElement.textContent,
        fill = getComputedStyle(key).backgroundColor;
      whole.append(element("svg:rect", { x, y: y - 9, width: 10, height: 10, fill }));
      whole.append(element("svg:text", { x: x + 16, y, fill: css("--ink"), "font-size": 12 }, words));
      x += 34 + 7 * words.length;
    }
    const image = new Image();
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(whole));
    await image.decode();
    const canvas = element("canvas", { width: wide * RATIO, height: high * RATIO });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas;
  }

  function save(blob, name) {
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  return { DASHES, Figure, css, element, measured, picture, save, three, ticks };
})();
