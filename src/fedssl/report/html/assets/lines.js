// Curves over rounds. A line: {name, paint, rounds, values, low, high, thin, notes}.

const known = (value) => value !== null && value !== undefined;

function path(points) {
  let text = "";
  let pen = false;
  for (const [x, y] of points) {
    if (y === null) { pen = false; continue; }
    text += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  }
  return text;
}

function band(line, place) {
  const parts = line.rounds
    .map((round, at) => [round, line.low[at], line.high[at]])
    .filter(([, low, high]) => known(low) && known(high));
  if (parts.length < 2) return null;
  const upper = parts.map(([round, , high]) => `${place.x(round).toFixed(1)} ${place.y(high).toFixed(1)}`);
  const lower = parts.map(([round, low]) => `${place.x(round).toFixed(1)} ${place.y(low).toFixed(1)}`).reverse();
  return svg("path", { class: "band", style: `fill:${line.paint}`, d: `M${[...upper, ...lower].join("L")}Z` });
}

function lineChart({ title, about, unit, lines }) {
  const rounds = [...new Set(lines.flatMap((line) => line.rounds))].sort((a, b) => a - b);
  const all = lines.flatMap((line) => [...line.values, ...(line.low || []), ...(line.high || [])]).filter(known);
  const main = lines.filter((line) => !line.thin);
  const ends = main.slice(0, 4).map((line) => {
    const there = line.rounds.filter((_, at) => known(line.values[at]));
    const value = (round) => written(line.values[line.rounds.indexOf(round)], unit);
    if (!there.length) return `${line.name}: no numbers`;
    return `${line.name} from ${value(there[0])} in round ${there[0]} to ${value(there.at(-1))} in round ${there.at(-1)}`;
  });
  const name = `${title} over rounds: ${ends.join("; ")}. Arrow keys read values.`;

  function draw(picture, width, height) {
    if (!all.length) {
      picture.append(svg("text", { x: 10, y: 30 }, "no finite numbers"));
      return { at: () => null, step: () => null, show: () => null, clear: () => {} };
    }
    const place = axes(picture, width, height, {
      xs: [rounds[0], rounds.at(-1)], ys: [Math.min(...all), Math.max(...all)], unit, xLabel: "round", margin: 0.05,
    });
    for (const line of lines) if (line.low && line.high) picture.append(band(line, place) || "");
    for (const line of lines) {
      const points = line.rounds.map((round, at) =>
        [place.x(round), known(line.values[at]) ? place.y(line.values[at]) : null]);
      picture.append(svg("path", {
        class: line.thin ? "line thin" : "line", style: `stroke:${line.paint}`, d: path(points),
      }));
      if (!line.thin && points.length <= 30) {
        for (const [x, y] of points) {
          if (y !== null) picture.append(svg("circle", { cx: x, cy: y, r: 2.4, style: `fill:${line.paint}` }));
        }
      }
    }
    const layer = svg("g", {});
    picture.append(layer);
    const clear = () => layer.replaceChildren();

    function show(mark) {
      clear();
      const round = rounds[mark];
      const here = lines
        .map((line) => ({ line, at: line.rounds.indexOf(round) }))
        .filter(({ line, at }) => at >= 0 && known(line.values[at]));
      layer.append(svg("line", { class: "rule", x1: place.x(round), x2: place.x(round), y1: place.top, y2: place.bottom }));
      const rows = [];
      const told = [];
      for (const { line, at } of here) {
        layer.append(svg("circle", {
          cx: place.x(round), cy: place.y(line.values[at]), r: line.thin ? 2.5 : 4, style: `fill:${line.paint}`,
        }));
        const note = line.notes ? ` ${line.notes[at]}` : "";
        const text = `${lines.length > 1 ? `${line.name}: ` : ""}${written(line.values[at], unit)}${note}`;
        rows.push(html("div", {}, lines.length > 1 && swatch(line.paint), text));
        told.push(text);
      }
      const top = Math.min(place.bottom, ...here.map(({ line, at }) => place.y(line.values[at])));
      return { x: place.x(round), y: top, tip: [html("b", {}, `round ${round}`), ...rows], text: `round ${round}: ${told.join(", ")}` };
    }

    function at(x) {
      let best = 0;
      rounds.forEach((round, index) => {
        if (Math.abs(place.x(round) - x) < Math.abs(place.x(rounds[best]) - x)) best = index;
      });
      return best;
    }

    return { at, show, clear, step: (key, mark) => along(key, mark, rounds.length) };
  }

  return chart({ title, about, name, height: 200, draw, kind: "line" });
}
