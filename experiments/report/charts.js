// Draws what the page's figures are made of: series over two axes, stacked bars, maps of squares. Each returns whether
// anything is left to draw. What is drawn comes from charts.py and maps.py; filters hide what is of hidden cells alone.
const charts = (() => {
  const { DASHES, css, element, measured, three } = drawing;
  const BAND = 0.16,
    SHADE = 0.1, // strengths of areas
    MOST_BARS = 16,
    BAR_PITCH = 34,
    NOTE = 30, // pixels for a number beside the last point
    LINE = 13,
    LEAST_LETTERS = 8.5; // pixels that can still be read

  // The cell of a mark that is of several: the chosen one, if it is among them, or else the first that is shown.
  const cellOf = ({ cells }, view) =>
    cells.includes(view.chosen()) && view.shown(view.chosen()) ? view.chosen() : (cells.find(view.shown) ?? null);
  const ringOf = (cell, view) =>
    cell === view.chosen() ? css("--ink") : view.roles(cell).length ? css("--accent") : null;
  const ranged = ({ low, high }) => measured(low) && measured(high);
  const there = ({ cells }, view) => !cells.length || cells.some(view.shown);

  function chart(figure, { x, y, series, uprights }) {
    const { view } = figure;
    const left = series
      .map((each) => ({ ...each, points: each.points.filter((point) => there(point, view)) }))
      .filter(({ points }) => points.length);
    if (!left.some(({ shape }) => shape)) return false; // lines alone, such as the ideal, tell nothing
    if (left.some((each) => each.points.some(({ note }) => note))) figure.right -= NOTE;
    figure.legend(
      [...left, ...uprights]
        .filter(({ words }) => words)
        .map((each) => ({ ...each, area: each.band ? BAND : null })),
    );
    const points = left.flatMap((each) => each.points),
      scaled = (axis, values) => ({ ...axis, from: axis.start, exact: axis.ticks.length ? axis.ticks : null, values });
    figure.axes(
      scaled(x, [...points.map((point) => point.x), ...uprights.map(({ at }) => at)]),
      scaled(y, points.flatMap((point) => (ranged(point) ? [point.y, point.low, point.high] : [point.y]))),
    );
    for (const { at, low, high, note, colour, line } of uprights) {
      const paint = css(`--${colour}`);
      if (measured(low)) {
        const [start, end] = [Math.max(low, figure.x.low), Math.min(high, figure.x.high)].map(figure.x.at);
        const size = { x: start, y: figure.top, width: Math.max(0, end - start), height: figure.floor - figure.top };
        figure.svg.append(element("svg:rect", { ...size, fill: paint, "fill-opacity": SHADE }));
      }
      figure.upright(at, note, { stroke: paint, "stroke-width": 1.4, "stroke-dasharray": DASHES[line] });
    }
    for (const each of left) {
      const paint = css(`--${each.colour}`),
        ends = each.points.filter(ranged);
      if (each.band)
        figure.area(
          ends.map((point) => [point.x, point.low, point.high]),
          { fill: paint, "fill-opacity": BAND },
        );
      if (each.line)
        figure.line(
          each.points.map((point) => [point.x, point.y]),
          { stroke: paint, "stroke-width": 1.4, "stroke-dasharray": DASHES[each.line] },
        );
      if (!each.shape) continue;
      ends.forEach((point) => figure.interval(point.x, point.low, point.high, { stroke: paint, class: "interval" }));
      for (const point of each.points) {
        const words = point.words.length ? point.words : null;
        const looks = { colour: paint, shape: each.shape, hollow: each.hollow, words };
        const place = figure.point(cellOf(point, view), point.x, point.y, 4.5, looks);
        if (point.note) figure.note(point.note, ...place);
      }
    }
    return true;
  }

  function bars(figure, { label, unit, parts, bars }) {
    const { view } = figure,
      all = bars.filter((bar) => there(bar, view));
    if (!all.length) return false;
    const most = MOST_BARS - 1, // evenly from the whole range, the first and the last among them
      step = (all.length - 1) / most;
    const some = [...Array(MOST_BARS).keys()].map((each) => all[Math.round(each * step)]);
    const rows = all.length > MOST_BARS ? some : all;
    const total = ({ values }) => values.reduce((sum, value) => sum + value, 0);
    figure.left = 8;
    figure.right -= NOTE;
    figure.tall(rows.length * BAR_PITCH);
    figure.legend(parts.map((part) => ({ ...part, area: 1 })));
    figure.axes({ values: rows.map(total), from: 0, label }, null);
    rows.forEach((bar, row) => {
      const y = figure.top + row * BAR_PITCH,
        cell = cellOf(bar, view),
        end = figure.x.at(total(bar));
      figure.text(bar.label, figure.left + 2, y + 12, { "text-anchor": "start", fill: css("--ink") });
      let start = 0;
      bar.values.forEach((value, part) => {
        const [from, to] = [figure.x.at(start), figure.x.at(start + value)],
          size = { x: from, y: y + 16, width: to - from, height: 13 };
        const looks = { fill: css(`--${parts[part].colour}`), stroke: css("--paper"), "stroke-width": 0.6 };
        figure.svg.append(element("svg:rect", { ...size, ...looks, "data-cell": cell }));
        start += value;
      });
      const ring = ringOf(cell, view);
      if (ring) {
        const size = { x: figure.left - 2, y: y + 14, width: end - figure.left + 4, height: 17 };
        figure.svg.append(element("svg:rect", { ...size, fill: "none", stroke: ring, "stroke-width": 2 }));
      }
      figure.text(three(total(bar)), end + 6, y + 26, { "text-anchor": "start" });
      const shares = bar.values.map(
        (value, part) => `${parts[part].words} ${three(value)} ${unit}, ${Math.round((100 * value) / total(bar))}%`,
      );
      figure.mark(cell, end, y + 22, [bar.label, ...shares], figure.left);
    });
    if (rows.length < all.length) figure.now(`Of ${all.length} sizes ${rows.length} from the whole range are shown.`);
    return true;
  }

  // A map of cells over two axes of maps.py. valueOf: of a cell on each axis. worth: of a cell, less is better; null if
  // it is not known. lines: words of its square. Returns the cells that stand in squares, the best of each.
  function squares(figure, x, y, cells, valueOf, worth, lines) {
    const best = new Map(),
      value = (cell) => worth(cell) ?? Infinity;
    const placed = (each, side) => [x, y][side].places[[x, y][side].values.indexOf(each)],
      places = new Map(cells.map((cell) => [cell, valueOf(cell).map(placed)]));
    for (const cell of cells) {
      const key = places.get(cell).join(" ");
      if (!best.has(key) || value(cell) < value(best.get(key))) best.set(key, cell);
    }
    const chosen = [...best.values()],
      used = (side) => [...new Set(chosen.map((cell) => places.get(cell)[side]))].sort((a, b) => a - b);
    const [across, up] = [used(0), used(1)],
      most = Math.max(...chosen.map((cell) => lines(cell).length));
    figure.tall(Math.max(244, up.length * (most * LINE + 10)));
    const width = (figure.right - figure.left) / across.length,
      height = (figure.floor - figure.top) / up.length;
    const known = chosen.map(worth).filter(measured),
      [least, greatest] = [Math.min(...known), Math.max(...known)];
    const fitting = (words) => (width - 4) / (words.length * 0.6), // the size of its letters
      written = new Map(chosen.map((cell) => [cell, lines(cell).filter((each) => fitting(each) >= LEAST_LETTERS)]));
    const sized = (line, usual) =>
      Math.min(usual, ...[...written.values()].filter((words) => words[line]).map((words) => fitting(words[line])));
    const letters = [...Array(most).keys()].map((line) => sized(line, line ? 10.5 : 11.5));
    for (const cell of chosen) {
      const [column, row] = places.get(cell);
      const [left, top] = [
        figure.left + across.indexOf(column) * width,
        figure.floor - (up.indexOf(row) + 1) * height,
      ];
      const behind = greatest > least ? (worth(cell) - least) / (greatest - least) : 0,
        strength = measured(worth(cell)) ? 1 - behind : 0;
      const ring = ringOf(cell, figure.view);
      const square = (inset, looks) => {
        const size = { width: Math.max(1, width - 2 * inset), height: Math.max(1, height - 2 * inset) };
        figure.svg.append(element("svg:rect", { x: left + inset, y: top + inset, ...size, ...looks }));
      };
      square(1.5, { fill: css("--ink"), "fill-opacity": 0.04 + 0.3 * strength, "data-cell": cell });
      if (ring) square(2, { fill: "none", stroke: ring, "stroke-width": 2.5 });
      const words = written.get(cell),
        middle = [left + width / 2, top + height / 2];
      words.forEach((text, line) => {
        const looks = { "font-size": letters[line], "font-weight": ring && !line ? 650 : 400 };
        const y = middle[1] + 4 + (line - (words.length - 1) / 2) * LINE;
        figure.text(text, middle[0], y, { fill: css("--ink"), ...looks });
      });
      figure.mark(cell, ...middle);
    }
    const wide = Math.ceil((Math.max(...across.map((place) => x.names[place].length)) * 6 + 6) / width);
    across.forEach((place, number) => {
      if (number % wide === 0) figure.text(x.names[place], figure.left + (number + 0.5) * width, figure.floor + 17);
    });
    up.forEach((place, number) => {
      const level = figure.floor - (number + 0.5) * height + 4;
      figure.text(y.names[place], figure.left - 7, level, { "text-anchor": "end" });
    });
    figure.labels(x.label, y.label);
    return chosen;
  }

  const draw = (figure, numbers) => (numbers.bars ? bars(figure, numbers) : chart(figure, numbers));
  return { draw, squares };
})();
