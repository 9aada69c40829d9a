"use strict";

// Elements, formatted numbers, colors. Text becomes text nodes and never markup.

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const html = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const svg = (tag, properties, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

const NONE = "–";
const grouped = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let place = 0;
  while (Math.abs(value) >= 1000 && place < units.length - 1) { value /= 1000; place += 1; }
  return `${Number(value.toPrecision(3))} ${units[place]}`;
}

function seconds(value) {
  if (value < 10) return `${Number(value.toPrecision(2))} s`;
  const whole = Math.round(value);
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
}

function plainNumber(value) {
  if (Number.isInteger(value)) return grouped(value, 0);
  const size = Math.abs(value);
  if (size >= 1000) return grouped(value, 0);
  if (size > 0.999 && size < 1) return String(Number(value.toPrecision(6)));
  if (size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

const WRITE = {
  percent: (value) => `${(100 * value).toFixed(1)} %`,
  bytes, seconds,
  count: (value) => grouped(value, Number.isInteger(value) || value >= 100 ? 0 : 1),
  number: plainNumber,
  text: String,
};

const written = (value, unit) =>
  value === null || value === undefined || value === "" ? NONE : (WRITE[unit] || String)(value);

// mean ± spread in one unit: 37.6 ± 0.4 %
function spreadText(cell, unit) {
  if (!cell) return NONE;
  if (cell.spread === null) return written(cell.mean, unit);
  if (unit === "percent") return `${(100 * cell.mean).toFixed(1)} ± ${(100 * cell.spread).toFixed(1)} %`;
  return `${written(cell.mean, unit)} ± ${written(unit === "number" ? Number(cell.spread.toPrecision(2)) : cell.spread, unit)}`;
}

const PALETTE = 10;
const color = (place, number) =>
  number <= PALETTE ? `var(--c${place % PALETTE})` : `hsl(${Math.round((360 * place) / number)} 58% var(--lightness))`;
const swatch = (paint) => html("span", { class: "swatch", style: `background:${paint}`, "aria-hidden": "true" });

// About this many round numbers from low to high.
function ticks(low, high, about) {
  const raw = (high - low) / Math.max(about, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found.map((value) => Number(value.toPrecision(12)));
}

function speak(text) { document.getElementById("spoken").textContent = text; }

const tip = {
  show(content, x, y) {
    const box = document.getElementById("tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const left = Math.min(Math.max(8, x + 14), window.innerWidth - box.offsetWidth - 8);
    const above = y - box.offsetHeight - 12;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${above > 8 ? above : y + 18}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};
