// Tables, plain and sortable.

const isNumber = (unit) => unit !== "text";
const cellClass = (unit) => (isNumber(unit) ? "number" : null);

const FEW = 40; // rows of a long table before all are asked for

// columns: [{label, unit, about}], rows: arrays of values; `name` is the key of the table's state.
function sortable({ name, caption, columns, rows, order, set }) {
  order = state.orders[name] || order || { column: null, down: false };
  const more = rows.length > FEW && !state.all[name];
  const sorted = (value) => set({ orders: { ...state.orders, [name]: value } });
  const value = (row) => row[order.column];
  const arranged = order.column === null ? rows : [...rows].sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || one === "") return 1; // unknown values come last in either order
    if (other === null || other === "") return -1;
    const less = typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return order.down ? -less : less;
  });
  const head = columns.map((column, place) => {
    const here = order.column === place;
    return html("th", {
      scope: "col", class: cellClass(column.unit), title: column.about || null,
      "aria-sort": here ? (order.down ? "descending" : "ascending") : "none",
    }, html("button", {
      type: "button", "data-focus": `${name}:${place}`,
      click: () => sorted({ column: place, down: here ? !order.down : isNumber(column.unit) && place > 0 }),
    }, column.label));
  });
  const table = html("table", {},
    titled(caption),
    html("thead", {}, html("tr", {}, head)),
    html("tbody", {}, arranged.slice(0, more ? FEW : rows.length).map((row) => html("tr", {},
      row.map((each, place) => html("td", { class: cellClass(columns[place].unit) }, written(each, columns[place].unit)))))));
  return [scrolled(caption, table), more && html("button", {
    type: "button", class: "plain", click: () => set({ all: { ...state.all, [name]: true } }),
  }, `show all ${rows.length} rows`)];
}

function plainTable(caption, head, rows) {
  return scrolled(caption, html("table", {},
    titled(caption),
    html("thead", {}, html("tr", {}, head.map(([label, unit]) => html("th", { scope: "col", class: cellClass(unit) }, label)))),
    html("tbody", {}, rows)));
}

// The caption stays in view while the table scrolls below it.
const titled = (caption) => html("caption", {}, html("span", {}, caption));

// Wide tables scroll by themselves, by keyboard too.
function scrolled(name, table) {
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table);
}

// --- controls --------------------------------------------------------------------------------------

function segmented(label, options, current, chosen) {
  return html("fieldset", {}, html("legend", {}, label), options.map(([value, text]) =>
    html("label", { class: "segment" },
      html("input", {
        type: "radio", name: label, value, checked: value === current, "data-focus": `${label}:${value}`,
        change: () => chosen(value),
      }),
      html("span", {}, text))));
}

function picker(label, options, current, chosen) {
  return html("label", {}, html("span", { class: "soft" }, `${label} `),
    html("select", { "data-focus": label, change: (event) => chosen(event.target.value) },
      options.map(([value, text]) => html("option", { value, selected: value === current }, text))));
}

function checkbox(label, on, changed) {
  return html("label", {},
    html("input", { type: "checkbox", checked: on, "data-focus": label, change: (event) => changed(event.target.checked) }), ` ${label}`);
}

// entries: [{name, paint, on}]; `pressed(place)` is called on a click.
function legend(label, entries, pressed) {
  return html("ul", { class: "keys", "aria-label": label }, entries.map(({ name, paint, on }, place) =>
    html("li", {}, pressed
      ? html("button", { type: "button", "aria-pressed": String(on), "data-focus": `${label}:${place}`, click: () => pressed(place) }, swatch(paint), name)
      : html("span", {}, swatch(paint), name))));
}
