// Puts the sections on the page; a live page polls for changes and rebuilds what has changed.

let shown = JSON.parse(document.getElementById("document").textContent);
const drawn = {}; // by section: what it was built from

const current = () => shown.runs.find((run) => run.id === state.run) || shown.runs[0];

function place(section, force) {
  const main = document.getElementById("main");
  const value = section.take(shown, current());
  const whose = section.one && shown.runs.length > 1 ? runLabel(current()) : null; // of several runs
  const text = JSON.stringify([value, whose]);
  let element = document.getElementById(section.id);
  if (value === null) { if (element) element.remove(); delete drawn[section.id]; return; }
  if (!force && drawn[section.id] === text) { main.append(element); return; }
  drawn[section.id] = text;
  const focus = element && element.contains(document.activeElement) && document.activeElement.dataset.focus;
  const set = (changes, everything) => {
    Object.assign(state, changes);
    if (everything) render(); // other sections show another run
    place(section, true);
  };
  const built = html("section", { id: section.id, "aria-labelledby": `${section.id}-title` },
    html("h2", { id: `${section.id}-title` }, section.title,
      whose && html("a", { class: "whose", href: "#run" }, whose)), section.build(value, set));
  if (section.id === "map" && !value.map) built.classList.add("wide"); // a line of text, not a picture
  tip.hide();
  if (element) element.replaceWith(built);
  else main.append(built);
  if (focus) {
    const again = [...built.querySelectorAll("[data-focus]")].find((each) => each.dataset.focus === focus);
    if (again) again.focus();
  }
}

function ago(time) {
  const apart = Math.max(0, Date.now() / 1000 - time);
  return `${seconds(Math.floor(apart))} ago`;
}

// The status of the run: [class of the badge, word, more words].
function situation({ finished, done, rounds, labelled, written: at, round_seconds: each }) {
  if (finished) return ["good", "finished", rounds === 1 ? "1 round" : `${rounds} rounds`];
  const progress = `round ${done} of ${rounds}`;
  if (!shown.live) return ["bad", "unfinished", `${progress}; last written ${ago(at)}`];
  const silent = Date.now() / 1000 - at > Math.max(120, 10 * (each || 0));
  if (silent) return ["bad", "silent", `${progress}; nothing new since ${ago(at)}: has it been stopped?`];
  if (done >= rounds && !labelled) return ["busy", "finishing", "all rounds are done; the encoder is being written"];
  if (done >= rounds) return ["busy", "probing", "all rounds are done; the encoder is being probed"];
  if (!done) return ["busy", "starting", "the first round has not ended yet"];
  const left = each ? `; about ${seconds((rounds - done) * each)} left` : "";
  return ["busy", "running", `${progress}, ${seconds(each || 0)} each${left}`];
}

function header() {
  const run = shown.runs.length === 1 ? shown.runs[0] : null;
  const status = run ? situation(run.status) : null;
  const unfinished = shown.runs.filter((each) => !each.status.finished).length;
  document.getElementById("header").replaceChildren(
    html("h1", {}, shown.title),
    html("div", { class: "status", role: shown.live ? "status" : null },
      status && [html("span", { class: `badge ${status[0]}` }, status[1]),
        shown.live > 0 && !run.status.finished && html("progress", { max: run.status.rounds, value: run.status.done, "aria-label": "rounds" }),
        html("span", {}, status[2])],
      !run && html("span", {}, unfinished ? `${unfinished} of ${shown.runs.length} have not finished` : "all have finished"),
      shown.lost && html("span", { class: "badge bad" }, "no answer: `fedssl watch` has ended; this is the last state")));
  document.getElementById("footer").replaceChildren(
    `fedssl ${shown.version} · made ${new Date(1000 * shown.made).toLocaleString()}`,
    shown.live ? " · live: this page updates itself" : "");
}

function navigation() {
  const there = SECTIONS.filter(({ id }) => document.getElementById(id));
  const links = there.map(({ id, title }) => html("li", {}, html("a", { href: `#${id}` }, title)));
  const nav = document.getElementById("nav");
  if (nav.textContent !== links.map((link) => link.textContent).join("")) nav.replaceChildren(html("ul", {}, links));
}

function render() {
  header();
  for (const section of SECTIONS) place(section, false);
  navigation();
}

async function news() {
  try {
    const answer = await fetch("document.json");
    if (!answer.ok) throw new Error(answer.statusText);
    shown = { ...(await answer.json()), live: shown.live };
  } catch {
    shown.lost = true;
  }
  render();
  setTimeout(news, 1000 * shown.live);
}

render();
if (shown.live) setTimeout(news, 1000 * shown.live);
