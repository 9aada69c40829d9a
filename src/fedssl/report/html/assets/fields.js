// Bars of a partition, a confusion matrix, a map of features.

function partitionChart(partition, by, shares, names) {
  const clients = partition.sizes.length;
  const kinds = by ? by.names.length : 1;
  const counts = partition.sizes.map((size, client) => by ? by.counts[client] || {} : { 0: size });
  const total = counts.map((own) => Object.values(own).reduce((sum, count) => sum + count, 0));
  const value = (client, kind) => (counts[client][kind] || 0) / (shares ? total[client] || 1 : 1);
  const images = partition.sizes.reduce((sum, size) => sum + size, 0);
  const name = `Images of ${clients} clients${by ? ` by ${by.kind}` : ""}: ${grouped(images, 0)} in all, from `
    + `${grouped(Math.min(...partition.sizes), 0)} to ${grouped(Math.max(...partition.sizes), 0)}. Arrow keys read clients.`;

  function draw(picture, width, height) {
    const most = shares ? 1 : Math.max(1, ...total);
    const named = names && clients * 80 <= width;
    const place = axes(picture, width, height, {
      xs: [-0.6, clients - 0.4], ys: [0, most], unit: shares ? "percent" : "count", xLabel: names ? "site" : "client", margin: 0,
      xTicks: named ? partition.sizes.map((_, client) => client) : ticks(0, clients - 1, Math.max(2, Math.min(clients, Math.round(width / 45)))),
      xNames: named ? names.map(shortName) : null,
    });
    const half = clients > 150 ? 0.5 : 0.42;
    const bars = Array.from({ length: kinds }, () => "");
    for (let client = 0; client < clients; client += 1) {
      let below = 0;
      const [left, right] = [place.x(client - half).toFixed(1), place.x(client + half).toFixed(1)];
      for (const kind of Object.keys(counts[client])) {
        const [bottom, top] = [below, below + value(client, kind)];
        bars[kind] += `M${left} ${place.y(bottom).toFixed(1)}V${place.y(top).toFixed(1)}H${right}V${place.y(bottom).toFixed(1)}Z`;
        below = top;
      }
    }
    bars.forEach((d, kind) => { if (d) picture.append(svg("path", { d, style: `fill:${color(kind, kinds)}` })); });
    const layer = svg("g", {});
    picture.append(layer);
    const clear = () => layer.replaceChildren();

    function show(client) {
      clear();
      const top = place.y(shares ? 1 : total[client]);
      layer.append(svg("rect", {
        class: "cursor", x: place.x(client - 0.5), y: top - 2, width: place.x(0.5) - place.x(-0.5), height: place.bottom - top + 2,
      }));
      const order = Object.keys(counts[client]).sort((a, b) => counts[client][b] - counts[client][a]);
      const words = order.slice(0, 8).map((kind) => [kind, `${by ? `${by.names[kind] ?? kind}: ` : ""}${grouped(counts[client][kind], 0)} images`]);
      const more = order.length > 8 ? [html("div", {}, `and ${order.length - 8} more`)] : [];
      return {
        x: place.x(client), y: top,
        tip: [html("b", {}, `${clientName(names, client)}: ${grouped(partition.sizes[client], 0)} images`),
          ...(by ? words.map(([kind, text]) => html("div", {}, swatch(color(kind, kinds)), text)) : []), ...more],
        text: `${clientName(names, client)}: ${words.map(([, text]) => text).join(", ")}`,
      };
    }

    const at = (x) => {
      const client = Math.round(((x - place.x(0)) / (place.x(1) - place.x(0))) || 0);
      return client >= 0 && client < clients ? client : null;
    };
    return { at, show, clear, step: (key, mark) => along(key, mark, clients) };
  }

  return chart({ name, height: 260, draw, kind: "partition" });
}

const shortName = (text) => (text.length > 12 ? `${text.slice(0, 11)}…` : text);

function confusionChart(probe) {
  const names = probe.per_class.map((row) => String(row.class));
  const rows = probe.confusion.map((row) => ({ row, total: row.reduce((sum, count) => sum + count, 0) }));
  const number = names.length;
  const labelled = number <= 24;
  const name = `Confusion of the ${probe.protocol} probe: rows are true classes, columns are predictions. Arrow keys read cells.`;

  function draw(picture, width, height) {
    const left = labelled ? 10 + 6.4 * Math.max(...names.map((text) => shortName(text).length)) : 24;
    const bottom = labelled ? Math.min(90, left + 14) : 24;
    const side = Math.min((width - left - 6) / number, (height - bottom - 20) / number);
    const top = 16;
    picture.append(svg("text", { x: left, y: 10 }, "true ↓   predicted →"));
    rows.forEach(({ row, total }, truth) => {
      row.forEach((count, taken) => {
        const share = total ? count / total : 0;
        if (!share && number > 30) return;
        const paint = truth === taken ? "var(--accent)" : "var(--bad)";
        picture.append(svg("rect", {
          x: left + taken * side, y: top + truth * side, width: Math.max(1, side - 1), height: Math.max(1, side - 1),
          style: `fill:${share ? paint : "var(--grid)"};fill-opacity:${share ? (0.08 + 0.92 * Math.sqrt(share)).toFixed(3) : 0.6}`,
        }));
        if (side >= 30 && share >= 0.005) {
          picture.append(svg("text", {
            x: left + (taken + 0.5) * side - 0.5, y: top + (truth + 0.5) * side + 3.5, "text-anchor": "middle",
            style: `fill:${share > 0.25 ? "var(--page)" : "var(--ink)"}`,
          }, String(Math.round(100 * share))));
        }
      });
      if (!labelled) return;
      picture.append(svg("text", { x: left - 6, y: top + (truth + 0.5) * side + 4, "text-anchor": "end" }, shortName(names[truth])));
      const [x, y] = [left + (truth + 0.5) * side, top + number * side + 12];
      picture.append(names.every((text) => text.length <= 2)
        ? svg("text", { x, y, "text-anchor": "middle" }, names[truth])
        : svg("text", { x, y, "text-anchor": "end", transform: `rotate(-45 ${x} ${y - 4})` }, shortName(names[truth])));
    });
    const layer = svg("g", {});
    picture.append(layer);
    const clear = () => layer.replaceChildren();

    function show([truth, taken]) {
      clear();
      layer.append(svg("rect", { class: "cursor", x: left + taken * side - 1, y: top + truth * side - 1, width: side + 1, height: side + 1 }));
      const { row, total } = rows[truth];
      const share = total ? row[taken] / total : 0;
      const text = truth === taken ? `${names[truth]}, correct` : `${names[truth]}, predicted as ${names[taken]}`;
      const count = `${written(row[taken], "count")} of ${written(total, "count")} images (${written(share, "percent")})`;
      return {
        x: left + (taken + 0.5) * side, y: top + truth * side, tip: [html("b", {}, text), html("div", {}, count)], text: `${text}: ${count}`,
      };
    }

    function at(x, y) {
      const [taken, truth] = [Math.floor((x - left) / side), Math.floor((y - top) / side)];
      return taken >= 0 && truth >= 0 && taken < number && truth < number ? [truth, taken] : null;
    }

    function step(key, mark) {
      const [truth, taken] = mark || [0, 0];
      const within = (value) => Math.min(number - 1, Math.max(0, value));
      if (!mark || key === "Home") return [0, 0];
      if (key === "End") return [number - 1, number - 1];
      if (key === "ArrowLeft" || key === "ArrowRight") return [truth, within(taken + (key === "ArrowRight" ? 1 : -1))];
      return [within(truth + (key === "ArrowDown" ? 1 : -1)), taken];
    }

    return { at, show, clear, step };
  }

  return chart({ name, height: (width) => Math.min(width, 620) + 20, draw, kind: "confusion" });
}

const MAP_WIDTH = 640;

function mapChart(map, kind, only) {
  const by = map.kinds[kind];
  const number = map.x.length;
  const kinds = by ? by.names.length : 1;
  const paint = (point) => (by ? color(by.of[point], kinds) : "var(--accent)");
  const lit = (point) => only === null || (by && by.of[point] === only);
  const above = Math.min(...map.y); // points fill the width; the picture is as high as they are
  const span = Math.max(...map.y) - above;
  const order = [...Array(number).keys()].sort((a, b) => (by ? by.of[a] - by.of[b] : 0) || map.x[a] - map.x[b]);
  const rank = new Map(order.map((point, place) => [point, place]));
  const name = `Map of the features of ${number} images${by ? `, colored by ${kind}` : ""} (${map.how}). Arrow keys go from image to image.`;

  function draw(picture, width, height) {
    const side = Math.min(width, MAP_WIDTH) - 20;
    const left = (width - side) / 2;
    const x = (point) => left + map.x[point] * side;
    const y = (point) => 10 + (map.y[point] - above) * side;
    const radius = number > 400 ? 3 : 4.5;
    for (const point of order.filter((each) => !lit(each)).concat(order.filter(lit))) {
      picture.append(svg("circle", {
        cx: x(point).toFixed(1), cy: y(point).toFixed(1), r: radius, style: `fill:${paint(point)}`,
        "fill-opacity": lit(point) ? 0.82 : 0.08,
      }));
    }
    const layer = svg("g", {});
    picture.append(layer);
    const clear = () => layer.replaceChildren();

    function show(point) {
      clear();
      layer.append(svg("circle", { class: "cursor", cx: x(point), cy: y(point), r: radius + 3 }));
      const words = Object.entries(map.kinds).map(([what, { of, names }]) => {
        const value = names[of[point]] ?? of[point];
        return what === "client" ? value : `${what} ${value}`;
      });
      return { x: x(point), y: y(point) - 6, tip: [thumbnail(map.sprite, point), ...words.map((text) => html("div", {}, text))], text: words.join(", ") };
    }

    function at(px, py) {
      let [best, nearest] = [null, 18 ** 2];
      for (let point = 0; point < number; point += 1) {
        const apart = (x(point) - px) ** 2 + (y(point) - py) ** 2;
        if (lit(point) && apart < nearest) [best, nearest] = [point, apart];
      }
      return best;
    }

    function step(key, mark) {
      const shown = order.filter(lit);
      const place = mark === null ? null : shown.indexOf(order[rank.get(mark)]);
      return shown.length ? shown[along(key, place, shown.length)] : null;
    }

    return { at, show, clear, step };
  }

  return chart({ name, height: (width) => Math.max(60, span * (Math.min(width, MAP_WIDTH) - 20) + 20), draw, kind: "map" });
}

function thumbnail(sprite, place) {
  const size = 72;
  const scale = size / sprite.side;
  const [column, row] = [place % sprite.columns, Math.floor(place / sprite.columns)];
  return html("div", {
    class: "thumbnail",
    style: `width:${size}px;height:${size}px;background-image:url(${sprite.uri});`
      + `background-size:${sprite.columns * size}px auto;background-position:${-column * sprite.side * scale}px ${-row * sprite.side * scale}px`,
  });
}
