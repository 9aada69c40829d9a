// The common part of all charts: a caption, a size that follows the page, hover, and arrow keys.

// `draw(picture, width, height)` fills an SVG and returns what can be pointed at:
//   at(x, y)      the mark nearest to a point of the picture, or null
//   step(key, mark)  the mark that an arrow key leads to from `mark` (null: none yet)
//   show(mark)    highlights it; returns {x, y, tip: nodes, text: for screen readers}
//   clear()       removes the highlight
function chart({ title, about, name, height, draw, kind }) {
  const picture = svg("svg", { role: "img", tabindex: "0", "aria-label": name, "data-chart": kind });
  const figure = html("figure", {},
    title && html("figcaption", {}, title, html("span", { class: "about" }, about || "")), picture);
  let marks = null;
  let mark = null;

  function point(found, spoken) {
    mark = found;
    if (found === null) { marks.clear(); tip.hide(); return; }
    const shown = marks.show(found);
    const box = picture.getBoundingClientRect();
    tip.show(shown.tip, box.left + shown.x, box.top + shown.y);
    if (spoken) speak(shown.text);
  }

  function redraw(width) {
    const tall = typeof height === "function" ? height(width) : height;
    picture.replaceChildren();
    picture.setAttribute("viewBox", `0 0 ${width} ${tall}`);
    picture.setAttribute("height", tall);
    mark = null;
    marks = draw(picture, width, tall);
  }

  function hover(event) {
    const box = picture.getBoundingClientRect();
    point(marks && marks.at(event.clientX - box.left, event.clientY - box.top), false);
  }

  const arrows = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
  fill(picture, {
    pointermove: hover,
    pointerdown: hover,
    pointerleave: () => marks && point(null),
    blur: () => marks && point(null),
    keydown: (event) => {
      if (event.key === "Escape" && marks) point(null);
      if (!arrows.includes(event.key) || !marks) return;
      event.preventDefault();
      point(marks.step(event.key, mark), true);
    },
  }, []);

  let width = 0;
  new ResizeObserver((entries) => {
    const now = Math.round(entries[0].contentRect.width);
    if (now && now !== width) { width = now; redraw(now); }
  }).observe(figure);
  return figure;
}

// Arrow keys along a row of marks numbered 0 … number − 1.
function along(key, mark, number) {
  if (key === "Home" || (mark === null && key !== "End" && key !== "ArrowLeft")) return 0;
  if (key === "End" || mark === null) return number - 1;
  const move = key === "ArrowRight" || key === "ArrowUp" ? 1 : -1;
  return Math.min(number - 1, Math.max(0, mark + move));
}

// Axes, and the mapping from values to positions. Returns {x, y, left, top, right, bottom}.
function axes(picture, width, height, { xs, ys, unit, xLabel, xTicks, xNames, margin }) {
  let [low, high] = ys;
  const pad = low === high ? Math.abs(low) * 0.1 || 0.5 : margin * (high - low);
  low -= pad;
  high += pad;
  const marksY = ticks(low, high, Math.max(3, Math.round(height / 55)));
  const labels = marksY.map((value) => written(value, unit));
  const left = 10 + 6.3 * Math.max(...labels.map((label) => label.length));
  const [right, top, bottom] = [width - 10, 8, height - 34];
  const [first, last] = xs[0] === xs[1] ? [xs[0] - 0.5, xs[1] + 0.5] : xs;
  const x = (value) => left + ((value - first) / (last - first)) * (right - left);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  marksY.forEach((value, place) => picture.append(
    svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, labels[place])));
  const marksX = xTicks || ticks(xs[0], xs[1], Math.max(2, Math.round(width / 70)));
  for (const value of marksX.filter(Number.isInteger)) {
    picture.append(svg("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, xNames ? xNames[value] : grouped(value, 0)));
  }
  picture.append(
    svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, xLabel));
  return { x, y, left, right, top, bottom };
}
