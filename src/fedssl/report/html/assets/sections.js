// The sections of the page, top to bottom. Each takes what it shows from the document (null: nothing to
// show) and builds it; `set` changes the state of the page and rebuilds the section.

const state = {
  run: null, hidden: [], lines: "settings", each: false, reference: null, measure: null,
  probe: null, kind: null, shares: false, color: null, only: null, orders: {}, all: {}, open: {},
};

const runLabel = (run) => `${run.label} (seed ${run.seed})`;
const clientName = (names, client) => (names && names[client]) || `client ${client}`;
const note = (text) => html("p", { class: "notice" }, text);

function tiles(facts) {
  return html("dl", { class: "tiles" }, facts.map((fact) => html("div", { class: "tile" },
    html("dt", {}, fact.label), html("dd", {}, written(fact.value, fact.unit)), fact.about && html("dd", {}, fact.about))));
}

const story = (run) => [
  run.summary.filter((sentence) => !run.warnings.includes(sentence)).map((sentence) => html("p", {}, sentence)),
  run.warnings.map(note),
];

// --- summary -----------------------------------------------------------------------------------------

// A bar for each [name, share, paint, more words], and the number behind it.
function bars(label, entries) {
  const most = Math.max(...entries.map(([, share]) => share), 1e-9);
  const scale = most > 0.5 ? 1 : most;
  return html("ul", { class: "bars", "aria-label": label }, entries.map(([name, share, paint, more, strong]) => html("li", { class: strong ? "strong" : null },
    html("span", { class: "what" }, name),
    html("span", { class: "track", "aria-hidden": "true" }, html("span", { style: `width:${(100 * share) / scale}%;background:${paint}` })),
    html("span", { class: "number" }, `${written(share, "percent")}${more || ""}`))));
}

function headline({ accuracy, untrained, centralized, label }) {
  const gain = known(untrained) ? 100 * (accuracy - untrained) : null;
  const entries = [["this run", accuracy, "var(--accent)", "", true]];
  if (known(centralized)) entries.push(["centralized: all images in one place", centralized, "var(--soft)"]);
  if (known(untrained)) entries.push(["untrained encoder", untrained, "var(--line)"]);
  return [
    html("p", { class: "headline" }, html("b", {}, written(accuracy, "percent")), html("span", {}, label,
      gain !== null && html("span", { class: `gain ${gain > 0 ? "good" : "bad"}` }, gain > 0 ? `+${gain.toFixed(1)} points over the untrained encoder` : `${(-gain).toFixed(1)} points below the untrained encoder`))),
    entries.length > 1 && bars("compared", entries),
  ];
}

// Settings by the first number they are compared by, best first, and the untrained encoder.
function ranking({ groups, measures, table }) {
  const measure = measures.find((each) => each.tested);
  if (!measure || groups.length < 2) return null;
  const found = table.filter(({ cells }) => cells[measure.key]).map(({ group, cells }) => ({ group, cell: cells[measure.key] }));
  found.sort((one, other) => other.cell.mean - one.cell.mean);
  const place = (id) => groups.findIndex((group) => group.id === id);
  const entries = found.slice(0, 12).map(({ group, cell }, at) => [
    groups[place(group)].name, cell.mean, color(place(group), groups.length), cell.spread === null ? "" : ` ± ${(100 * cell.spread).toFixed(1)}`, at === 0]);
  const before = table.map(({ cells }) => cells[measure.key.replace(".accuracy", ".untrained")]).filter(Boolean);
  if (before.length && measure.key.endsWith(".accuracy")) {
    entries.push(["untrained encoder", before.reduce((sum, { mean }) => sum + mean, 0) / before.length, "var(--line)"]);
  }
  return [html("h3", {}, measure.label), bars(measure.label, entries), found.length > 12 && html("p", { class: "soft" }, `and ${found.length - 12} more, in the table below`)];
}

// The rest of the summary of a single run: the first sentence and the warnings are at the top.
function buildAbout({ run }) {
  const rest = run.summary.slice(1).filter((sentence) => !run.warnings.includes(sentence));
  return html("div", { class: "beside" }, html("div", {}, rest.map((sentence) => html("p", {}, sentence))), tiles(run.facts));
}

function buildSummary({ summary, runs, comparison }) {
  if (runs.length === 1) {
    const [run] = runs;
    return [run.headline && headline(run.headline), html("p", { class: "soft" }, run.summary[0]), run.warnings.map(note)];
  }
  const warned = new Map(); // by warning, the runs that it is about
  for (const run of runs) for (const text of run.warnings) warned.set(text, [...(warned.get(text) || []), run]);
  // The settings of these runs, with seeds where not all are meant.
  const settings = (some) => [...new Set(some.map(({ label }) => label))].map((label) => {
    const own = some.filter((run) => run.label === label);
    const all = own.length === runs.filter((run) => run.label === label).length;
    return all ? label : `${label} (seed ${own.map(({ seed }) => seed).join(", ")})`;
  });
  return [
    ranking(comparison),
    summary.map((sentence) => html("p", {}, sentence)),
    [...warned].map(([text, some]) => note(`${some.length === runs.length ? "All runs" : settings(some).join("; ")}: ${text}`)),
  ];
}

// --- comparison --------------------------------------------------------------------------------------

function buildComparison({ groups, measures, table, pairs, differences }, set) {
  const name = Object.fromEntries(groups.map((group) => [group.id, group.name]));
  const paint = (id) => color(groups.findIndex((group) => group.id === id), groups.length);
  const best = Object.fromEntries(measures.filter((each) => each.tested && groups.length > 1).map(({ key }) => [
    key, Math.max(...table.map(({ cells }) => (cells[key] ? cells[key].mean : -Infinity)))]));
  const rows = table.map(({ group, cells }) => html("tr", {},
    html("th", { scope: "row" }, swatch(paint(group)), name[group]),
    html("td", {}, groups.find((each) => each.id === group).seeds.join(", ")),
    measures.map(({ key, unit }) => html("td", { class: cells[key] && cells[key].mean === best[key] ? "number best" : "number" },
      spreadText(cells[key], unit),
      cells[key] && cells[key].seeds < groups.find((each) => each.id === group).seeds.length && ` (${cells[key].seeds} seeds)`))));
  return [
    plainTable("Mean ± sample standard deviation over seeds.",
      [["setting", "text"], ["seeds", "text"], ...measures.map(({ label }) => [label, "number"])], rows),
    groups.length > 1 && buildPairs(groups, measures, pairs, name, set),
    differences.length > 0 && [html("h3", {}, "What differs"),
      plainTable("Config keys that differ between settings.",
        [["key", "text"], ...groups.map((group) => [group.name, "text"])],
        differences.map(({ key, values }) => html("tr", {}, html("th", { scope: "row", class: "key" }, key),
          values.map((value) => html("td", { class: "value" }, value === null ? NONE : setting(value))))))],
  ];
}

function buildPairs(groups, measures, pairs, name, set) {
  const tested = measures.filter((each) => each.tested);
  if (!tested.length) return null;
  const measure = tested.find((each) => each.key === state.measure) || tested[0];
  const reference = groups.find((group) => group.id === state.reference) || groups[0];
  const opposite = { higher: "lower", lower: "higher" };
  const found = pairs.filter((pair) => pair.measure === measure.key && [pair.first, pair.second].includes(reference.id));
  const points = (value, digits) => (value === null ? NONE : `${value > 0 ? "+" : ""}${(100 * value).toFixed(digits)}`);
  const chance = (p) => (p === null ? NONE : p < 0.001 ? "< 0.001" : p.toFixed(3));
  const rows = found.map((pair) => {
    const turned = pair.first === reference.id; // pairs are first − second; shown is the other one − the reference
    const mean = pair.mean === null ? null : turned ? -pair.mean : pair.mean;
    const word = turned ? opposite[pair.word] || pair.word : pair.word;
    const interval = pair.low === null ? NONE
      : `[${(turned ? [-pair.high, -pair.low] : [pair.low, pair.high]).map((value) => points(value, 1)).join(", ")}]`;
    const spread = pair.spread === null ? "" : ` ± ${(100 * pair.spread).toFixed(1)}`;
    return html("tr", {}, html("th", { scope: "row" }, name[turned ? pair.second : pair.first]),
      html("td", { class: "number" }, `${points(mean, 1)}${spread}`),
      html("td", { class: "number" }, interval),
      html("td", { class: "number" }, chance(pair.p)), html("td", { class: "number" }, chance(pair.p_corrected)),
      html("td", {}, pair.seeds.join(", ") || NONE), html("td", {}, word));
  });
  return [
    html("h3", {}, "Paired over seeds"),
    html("div", { class: "controls" },
      picker("compared with", groups.map((group) => [group.id, group.name]), reference.id, (value) => set({ reference: value })),
      tested.length > 1 && picker("by", tested.map((each) => [each.key, each.label]), measure.key, (value) => set({ measure: value }))),
    plainTable(`Difference from ${reference.name} in ${measure.label}, in points, over the seeds that both have.`,
      [["setting", "text"], ["difference", "number"], ["interval", "number"], ["p", "number"],
        ["p (Holm)", "number"], ["seeds", "text"], ["verdict", "text"]], rows),
    html("p", { class: "soft" }, "Higher or lower: a two-sided paired t-test with p ≤ 0.05 after Holm's correction over all pairs of ",
      "settings, and from six seeds on an exact sign-flip permutation test that agrees. The interval excludes 0 exactly when p (Holm) is at most 0.05."),
  ];
}

const setting = (value) => (typeof value === "string" ? value || "(empty)" : JSON.stringify(value));

// --- curves ------------------------------------------------------------------------------------------

function curvesOfRun(run, set) {
  const several = run.curves.some((curve) => Object.keys(curve.clients).length);
  return [
    html("p", { class: "soft" }, "Bands show the range over the clients of a round. Hover, or focus a chart and use the arrow keys, to read values."),
    several && html("div", { class: "controls" }, checkbox("a line for each client", state.each, (each) => set({ each }))),
    html("div", { class: "charts" }, run.curves.map((curve) => {
      const clients = state.each ? Object.entries(curve.clients) : [];
      return lineChart({
        ...curve, title: curve.label,
        lines: [
          ...clients.map(([client, values], place) => ({
            name: clientName(run.names, client), paint: color(place, clients.length), rounds: curve.rounds, values, thin: true,
          })),
          { name: clients.length ? "all" : curve.label, paint: "var(--accent)", rounds: curve.rounds, values: curve.values, low: curve.low, high: curve.high },
        ],
      });
    })),
  ];
}

function curvesOfMany({ runs, comparison }, set) {
  const { groups } = comparison;
  const place = (id) => groups.findIndex((group) => group.id === id);
  const shown = (id) => !state.hidden.includes(id);
  const many = runs.length > groups.length;
  const byRun = many && state.lines === "runs";
  const keys = comparison.curves.map((curve) => ({
    ...curve, title: curve.label,
    lines: byRun
      ? runs.filter((run) => shown(run.group)).flatMap((run) => run.curves.filter(({ key }) => key === curve.key).map((own) => ({
        name: `${groups[place(run.group)].name}, seed ${run.seed}`, paint: color(place(run.group), groups.length), rounds: own.rounds, values: own.values,
      })))
      : curve.lines.filter(({ group }) => shown(group)).map((line) => ({
        name: groups[place(line.group)].name, paint: color(place(line.group), groups.length), rounds: line.rounds, values: line.values,
        low: line.values.map((value, at) => (known(value) ? value - (line.spread[at] || 0) : null)),
        high: line.values.map((value, at) => (known(value) ? value + (line.spread[at] || 0) : null)),
        notes: line.spread.map((spread, at) => (spread === null ? "" : `± ${written(spread, curve.unit)} (${line.seeds[at]} seeds)`)),
      })),
  }));
  const toggle = (at) => {
    const { id } = groups[at];
    set({ hidden: shown(id) ? [...state.hidden, id] : state.hidden.filter((each) => each !== id) });
  };
  return [
    html("div", { class: "controls" },
      many && segmented("lines", [["settings", "mean of seeds"], ["runs", "every run"]], byRun ? "runs" : "settings", (lines) => set({ lines })),
      legend("settings", groups.map((group, at) => ({ name: group.name, paint: color(at, groups.length), on: shown(group.id) })), toggle)),
    !byRun && many && html("p", { class: "soft" }, "Bands are the standard deviation over seeds."),
    html("div", { class: "charts" }, keys.filter(({ lines }) => lines.length).map(lineChart)),
  ];
}

// --- one run -----------------------------------------------------------------------------------------

function buildRun({ runs, run }, set) {
  return [
    html("div", { class: "controls" }, picker("run", runs.map((each) => [each.id, runLabel(each)]), run.id,
      (id) => set({ run: id, probe: null, kind: null, color: null, only: null }, true))),
    html("p", { class: "soft key" }, run.path), story(run), tiles(run.facts),
  ];
}

function buildResults({ probes }, set) {
  const names = probes.map((probe) => (probe.options ? `${probe.protocol} ${probe.options}` : probe.protocol));
  const at = Math.max(0, names.indexOf(state.probe));
  const probe = probes[at];
  const rows = probes.map((each, place) => html("tr", {}, html("th", { scope: "row" }, names[place]),
    html("td", {}, each.model), html("td", {}, each.images),
    html("td", { class: "number" }, `${written(each.accuracy, "percent")}${known(each.spread) ? ` ± ${(100 * each.spread).toFixed(1)}` : ""}`),
    html("td", { class: "number" }, written(each.untrained, "percent")),
    html("td", { class: "number" }, known(each.gain) ? `${each.gain > 0 ? "+" : ""}${(100 * each.gain).toFixed(1)}` : NONE),
    html("td", { class: "number" }, written(each.macro_f1, "percent"))));
  const classes = (probe.per_class || []).map((row) => [row.class, row.count, row.precision, row.recall, row.f1]);
  return [
    plainTable("Every probe next to the same probe on the untrained encoder.",
      [["probe", "text"], ["encoder", "text"], ["images", "text"], ["accuracy", "number"], ["untrained", "number"], ["gain", "number"], ["macro-F1", "number"]], rows),
    probes.length > 1 && html("div", { class: "controls" }, picker("details of", names.map((each) => [each, each]), names[at], (value) => set({ probe: value }))),
    probe.sites ? buildSites(probe, set) : html("div", { class: "beside" },
      html("div", {},
        html("h3", {}, "Confusion matrix"),
        probe.confusion && probe.confusion.length
          ? [html("p", { class: "soft" }, "In percent of the images of a class: blue is correct, red is wrong."),
            html("div", { class: "square" }, confusionChart(probe))]
          : note((probe.per_class || []).length > 100 ? "A confusion matrix is kept for up to 100 classes."
            : "This probe was recorded without a confusion matrix. `fedssl eval RUN --protocol linear` records one.")),
      html("div", {},
        html("h3", {}, "By class"),
        sortable({
          name: "classes", set, rows: classes, caption: `The ${names[at]} probe by class.`,
          columns: [{ label: "class", unit: "text" }, { label: "images", unit: "count" }, { label: "precision", unit: "percent" },
            { label: "recall", unit: "percent" }, { label: "F1", unit: "percent" }],
        }))),
  ];
}

// A probe of every site on its own images.
function buildSites({ sites, left_out: without }, set) {
  return html("div", {},
    html("h3", {}, "By site"),
    sortable({
      name: "sites", set, rows: sites.map((row) => [row.site, row.images, row.accuracy, row.untrained]),
      caption: "Each site tests on its own images, and sends these numbers only.",
      columns: [{ label: "site", unit: "text" }, { label: "test images", unit: "count" }, { label: "accuracy", unit: "percent" }, { label: "untrained", unit: "percent" }],
    }),
    without.length > 0 && html("p", { class: "soft" }, `Without: ${without.map(({ site, reason }) => `${site} (${reason})`).join(", ")}.`));
}

function buildClients({ partition, clients, site, names }, set) {
  const by = partition && (partition.by.find(({ kind }) => kind === state.kind) || partition.by[0]);
  return [
    partition && [
      html("div", { class: "controls" },
        partition.by.length > 1 && segmented("color", partition.by.map(({ kind }) => [kind, kind]), by.kind, (kind) => set({ kind })),
        by && segmented("bars", [["images", "images"], ["shares", "shares"]], state.shares ? "shares" : "images", (value) => set({ shares: value === "shares" }))),
      html("div", { class: partition.sizes.length <= 12 ? "square" : null }, partitionChart(partition, by, Boolean(by && state.shares), names)),
      by && legend(`${by.kind} colors`, by.names.map((name, place) => ({ name, paint: color(place, by.names.length) }))),
      !by && !site && html("p", { class: "soft" }, "Without labels, bars are sizes."),
    ],
    html("h3", {}, "Each client"),
    sortable({
      name: "clients", set, rows: clients.rows, columns: clients.columns, order: { column: 0, down: false },
      caption: "Latest numbers of each client; a click on a heading sorts.",
    }),
  ];
}

function buildMap({ map, whose }, set) {
  const kinds = Object.keys(map.kinds);
  const kind = kinds.includes(state.color) ? state.color : kinds[0];
  const by = map.kinds[kind];
  const present = by ? by.names.map((name, place) => ({ name, place })).filter(({ place }) => by.of.includes(place)) : [];
  return [
    html("p", { class: "soft" }, `Features of ${grouped(map.x.length, 0)} of ${grouped(map.of, 0)} images as the clients see them (encoder: ${whose}); `
      + `${map.how}. Nearby points are similar; large distances mean little.`),
    kinds.length > 1 && html("div", { class: "controls" }, segmented("colored by", kinds.map((each) => [each, each]), kind, (value) => set({ color: value, only: null }))),
    html("div", { class: "square" }, mapChart(map, kind, state.only)),
    by && legend(`show one ${kind} only`, present.map(({ name, place }) => ({
      name, paint: color(place, by.names.length), on: state.only === null || state.only === place,
    })), (at) => set({ only: state.only === present[at].place ? null : present[at].place })),
  ];
}

const FIRST_STRIPS = 4;

function buildStrips({ strips, whose }) {
  const labelled = strips.some(({ query }) => query.class !== null);
  const picture = ({ uri }, alt, mark) => html("img", { src: uri, alt, class: `${mark} ${uri.startsWith("data:image/jpeg") ? "smooth" : ""}` });
  return [
    html("p", { class: "soft" }, `Left: an image. Right: the clients' images with the most similar features (encoder: ${whose}).`
      + (labelled ? " ✓ same class, ✗ another class." : "")),
    folded(strips.map(({ query, nearest }, number) => html("div", { class: "strip", role: "group", tabindex: "0", "aria-label": `neighbors of image ${number + 1}` },
      html("figure", {}, picture(query, labelled ? `query: ${query.class}` : "query", ""), html("figcaption", {}, labelled ? query.class : "query")),
      nearest.map((each) => {
        const right = each.class === query.class;
        const words = `${labelled ? `${each.class}, ` : ""}client ${each.client}, cosine ${each.cosine.toFixed(3)}`;
        return html("figure", { title: words }, picture(each, words, labelled ? (right ? "right" : "wrong") : ""),
          html("figcaption", {}, labelled ? `${right ? "✓" : "✗"} ${each.class}` : each.cosine.toFixed(2)));
      })))),
  ];
}

// The first rows, and the others behind a line to click.
function folded(rows) {
  if (rows.length <= FIRST_STRIPS) return rows;
  return [rows.slice(0, FIRST_STRIPS), html("details", { open: state.open.strips, toggle: (event) => { state.open.strips = event.target.open; } },
    html("summary", {}, `${rows.length - FIRST_STRIPS} more`), rows.slice(FIRST_STRIPS))];
}

function buildAudit({ audit }) {
  return audit.map(({ title, words, picture }) => [html("h3", {}, title), words.map((sentence) => html("p", {}, sentence)),
    picture && (picture.uri ? html("img", { class: "attack", src: picture.uri, alt: title }) : note(`cannot be read: ${picture.why_not}`))]);
}

function buildSamples({ samples }) {
  return html("div", { class: "samples" }, samples.map(({ name, uri, why_not: why }) => html("figure", {},
    html("figcaption", {}, name), uri ? html("img", { src: uri, alt: `samples: ${name}` }) : note(`cannot be read: ${why}`))));
}

function buildFailures({ failures, names }, set) {
  const { total, turns, unused, reasons, each } = failures;
  const spare = unused ? html("p", { class: "soft" }, `${grouped(unused, 0)} answers came too late to be needed; these are not failures.`) : null;
  if (!total) return [html("p", {}, turns ? `None in ${grouped(turns, 0)} turns of clients.` : "No round has ended yet."), spare];
  const some = (ids) => listed(ids.map((id) => (names ? clientName(names, id) : id)));
  const listed = (ids) => (ids.length > 12 ? `${ids.slice(0, 12).join(", ")} and ${ids.length - 12} more` : ids.join(", "));
  return [
    html("p", {}, `${grouped(total, 0)} of ${grouped(turns, 0)} turns of clients failed; these clients were left out of the round.`), spare,
    plainTable("By reason.", [["reason", "text"], ["times", "number"], ["clients", "text"], ["rounds", "text"]],
      reasons.map((row) => html("tr", {}, html("td", { class: "reason" }, row.reason), html("td", { class: "number" }, grouped(row.count, 0)),
        html("td", {}, some(row.clients)), html("td", {}, row.first === row.last ? String(row.first) : `${row.first} to ${row.last}`)))),
    html("details", { open: state.open.failures, toggle: (event) => { state.open.failures = event.target.open; } },
      html("summary", {}, each.length < total ? `the last ${each.length}, one by one` : "one by one"),
      sortable({
        name: "failures", set, caption: "Failures, one by one.", rows: each.map((row) => [row.round, names ? clientName(names, row.client) : row.client, row.reason]),
        columns: [{ label: "round", unit: "count" }, names ? { label: "site", unit: "text" } : { label: "client", unit: "count" }, { label: "reason", unit: "text" }],
      })),
  ];
}

function buildConfig({ config }) {
  const changed = config.filter((row) => row.changed);
  const rows = (all) => all.map(({ key, value, changed: bold }) => html("tr", { class: bold && all.length > changed.length ? "changed" : null },
    html("th", { scope: "row", class: "key" }, key), html("td", { class: "value key" }, setting(value))));
  return [
    changed.length > 0 && plainTable("Keys that are not at their default.", [["key", "text"], ["value", "text"]], rows(changed)),
    !changed.length && html("p", {}, "All keys are at their defaults."),
    html("details", { open: state.open.config, toggle: (event) => { state.open.config = event.target.open; } },
      html("summary", {}, `all ${config.length} keys`),
      plainTable("The whole config; bold: not at its default.", [["key", "text"], ["value", "text"]], rows(config))),
  ];
}

const SECTIONS = [
  {
    id: "summary", title: "Result", build: buildSummary,
    take: (doc) => ({
      summary: doc.summary, comparison: doc.comparison,
      runs: doc.runs.map(({ label, seed, summary, warnings, facts, headline: head }) => ({ label, seed, summary, warnings, facts, headline: head })),
    }),
  },
  { id: "map", one: true, title: "Feature map", take: (doc, run) => run.images, build: (value, set) => (value.map ? buildMap(value, set) : note(value.why_not)) },
  { id: "neighbours", one: true, title: "Nearest neighbors", take: (doc, run) => (run.images.strips ? run.images : null), build: buildStrips },
  { id: "comparison", title: "Comparison", take: (doc) => doc.comparison, build: buildComparison },
  { id: "results", title: "Probes", one: true, take: (doc, run) => (run.probes.length ? { probes: run.probes } : null), build: buildResults },
  {
    id: "about", title: "The run", build: buildAbout,
    take: (doc, run) => (doc.runs.length > 1 ? null : { run: { summary: run.summary, warnings: run.warnings, facts: run.facts } }),
  },
  {
    id: "curves", title: "Curves",
    take: (doc, run) => {
      if (doc.comparison) return doc.comparison.curves.length ? { comparison: doc.comparison, runs: doc.runs.map(({ group, seed, curves }) => ({ group, seed, curves })) } : null;
      return run.curves.length ? { curves: run.curves, names: run.names } : null;
    },
    build: (value, set) => (value.comparison ? curvesOfMany(value, set) : curvesOfRun(value, set)),
  },
  { id: "run", title: "One run", take: (doc, run) => (doc.runs.length > 1 ? { runs: doc.runs.map(({ id, label, seed }) => ({ id, label, seed })), run } : null), build: buildRun },
  {
    id: "clients", one: true, title: "Clients", build: buildClients,
    take: (doc, run) => (run.clients.rows.length ? { partition: run.partition, clients: run.clients, names: run.names, site: Boolean(run.names) } : null),
  },
  { id: "audit", title: "Privacy audit", take: (doc, run) => (run.audit.length ? { audit: run.audit } : null), build: buildAudit },
  { id: "samples", one: true, title: "Samples", take: (doc, run) => (run.samples.length ? { samples: run.samples } : null), build: buildSamples },
  { id: "failures", one: true, title: "Failures", take: (doc, run) => ({ failures: run.failures, names: run.names }), build: buildFailures },
  { id: "config", one: true, title: "Configuration", take: (doc, run) => ({ config: run.config }), build: buildConfig },
];
